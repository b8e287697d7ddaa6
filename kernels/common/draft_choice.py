"""How many drafts of a step are worth their time: their expected tokens compared with the step's cost."""

import numpy as np

from .jit import compiled

MIN_GAIN = 1.02
"""Drafts that promise less than this factor of tokens per second are not computed."""

LEVEL_WEIGHT = 0.1
"""weight of a step in the level of all costs, which follows the machine's load and the contexts' length"""
SIZE_WEIGHT = 0.03
"""weight of a step in the cost of its size, once many steps had it"""
MAX_SURPRISE = np.log(1.5)
"""A step counts as at most so much slower or faster than expected (a logarithm)."""
STALE = 512
"""steps after which the cost of a size is learned anew as if only `STALE_COUNT` steps had had it"""
STALE_COUNT = 2.0


@compiled
def choose_drafts(counts, kinds, acceptance, costs, tokens, rows, must_draft):
    """The numbers of drafts [slots], of at most `counts`, with which a step samples most tokens per second.

    kinds: [slots]. acceptance: float64 [kinds, depths], the probability that a draft is kept if those before
    it are. costs: float64 [sizes], the time of steps by their tokens. tokens, rows: of the step without
    drafts, and how many of them sample. must_draft: whether it may not be a step without drafts.
    """
    chosen, survival = np.zeros_like(counts), np.zeros(len(counts), np.float64)
    for slot in range(len(counts)):
        survival[slot] = acceptance[kinds[slot], 0] if counts[slot] > 0 else 0.0
    best, expected, size = chosen.copy(), np.float64(rows), np.int64(tokens)
    most = 0.0 if must_draft else MIN_GAIN * expected / costs[tokens]
    while size + 1 < len(costs):
        slot = np.int64(np.argmax(survival))
        if survival[slot] <= 0.0:
            break
        expected += survival[slot]
        size += 1
        chosen[slot] += 1
        depth = chosen[slot]
        survival[slot] *= acceptance[kinds[slot], depth] if depth < counts[slot] else 0.0
        if expected / costs[size] > most:
            most = expected / costs[size]
            best[:] = chosen
    return best


@compiled
def count_outcomes(kinds, counts, drafts, seen, tokens, tried, kept, decay):
    """Adds to `tried` and `kept`, float64 [kinds, depths], whether drafts were right. Earlier outcomes of the
    same kind and depth fade.

    kinds, counts: [slots]; drafts: those of all slots. seen, tokens: the number of tokens that each slot
    [slots] then sampled, and these tokens. They tell about as many drafts, also about those that were not
    computed.
    """
    draft, token = 0, 0
    for slot in range(len(kinds)):
        kind = kinds[slot]
        for depth in range(min(counts[slot], seen[slot])):
            is_right = drafts[draft + depth] == tokens[token + depth]
            tried[kind, depth] = decay * tried[kind, depth] + 1.0
            kept[kind, depth] = decay * kept[kind, depth] + np.float64(is_right)
            if not is_right:
                break
        draft, token = draft + counts[slot], token + seen[slot]


@compiled
def learn_cost(size, time, step, factors, steps, latest, level, first, costs):
    """Learns the cost of `size` from the time of a step that had as many tokens.

    The time of a step is taken as `level` [1] · `first` [size] · `factors` [size]. The level is common to all
    sizes and moves faster, so that a machine that becomes busy does not make the sizes of the moment look
    dear. `costs` [sizes], without the level, gets the factors of the sizes between from their neighbours.
    step: the number of this step; steps, latest: [sizes], how many steps had the size, and the last of them.
    """
    if level[0] == 0.0:
        level[0] = time / first[size]
    relative = time / (level[0] * first[size])
    if steps[size] == 0.0:
        factors[size] = relative
    else:
        if step - latest[size] > STALE:
            steps[size] = min(steps[size], STALE_COUNT)
        surprise = np.log(relative / factors[size])
        surprise = min(max(surprise, -MAX_SURPRISE), MAX_SURPRISE)
        factors[size] *= np.exp(surprise * max(SIZE_WEIGHT, 1.0 / (1.0 + steps[size])))
        level[0] *= np.exp(surprise * LEVEL_WEIGHT)
    steps[size] += 1.0
    latest[size] = step
    before = -1
    for after in range(len(costs)):
        if steps[after] > 0.0:
            for between in range(before + 1, after + 1):
                share = 1.0 if before < 0 else (between - before) / (after - before)
                left = factors[after] if before < 0 else factors[before]
                costs[between] = first[between] * (left + share * (factors[after] - left))
            before = after
    for beyond in range(before + 1, len(costs)):
        costs[beyond] = first[beyond] * factors[before]
