"""How many drafts of a step are worth their time: their expected tokens compared with the step's cost."""

import numpy as np

from .jit import compiled, inlined

MIN_GAIN = 1.1
"""Drafts that promise less than this factor of tokens per second are not computed: of many choices the best
one seems better than it is."""
MATCHES = (8, 16, 32)
"""Drafts of a source are told apart by whether their match has at least so many tokens."""
KINDS_OF_SOURCE = len(MATCHES) + 1
DECAY = 0.98
"""weight of the past in the outcomes of a kind and depth, so that about 50 count"""
OWN_DECAY = 0.9
"""weight of the past in what a request's drafts promised and kept"""
OWN_STRENGTH = 2.0
"""drafts of a request that count as much as all others of their kinds"""

LEVEL_WEIGHT = 0.1
"""weight of a step in the level of all costs, which follows the machine's load and the contexts' length"""
SIZE_WEIGHT = 0.03
"""weight of a step in the cost of its size, once many steps had it"""
MAX_SURPRISE = np.log(1.5)
"""A step counts as at most so much slower than expected (a logarithm). What else runs only adds time."""
STALE = 512
"""steps after which the cost of a size is learned anew as if only `STALE_COUNT` steps had had it"""
STALE_COUNT = 2.0


@inlined
def _kind(source, matched):
    kind = np.int64(source * KINDS_OF_SOURCE)
    for length in MATCHES:
        kind += np.int64(matched >= length)
    return kind


@inlined
def _probability(outcomes):
    return outcomes[1] / outcomes[0]


@inlined
def _is_used(size):
    """Whether steps with drafts may have so many tokens: 2 to 9, and then four sizes in each octave, because
    the first step of each size takes longer."""
    more = size - 1
    while more >= 8 and more % 2 == 0:
        more //= 2
    return more < 8


@compiled
def choose_drafts(drafts, outcomes, own, costs, tokens, rows, must_draft):
    """The numbers of drafts [slots], of at most those of `drafts`, with which a step samples most tokens per
    second.

    drafts: `Drafts`. outcomes: float64 [kinds, depths, 2], how often drafts were tried that followed right
    ones, and how often they were right. own: float64 [all slots, 2], how many right drafts of a slot these
    promised, and how many there were. costs: float64 [sizes], the time of steps by their tokens.
    tokens, rows: of the step without drafts, and how many of them sample. must_draft: whether it may not be a
    step without drafts.
    """
    slots, counts, _, sources, matched = drafts
    chosen, survival = np.zeros_like(counts), np.zeros(len(counts), np.float64)
    factors, kinds = np.ones(len(counts)), np.zeros(len(counts), np.int64)
    for row in range(len(counts)):
        if counts[row] > 0:
            kinds[row] = _kind(sources[row], matched[row])
            promised, right = own[slots[row]]
            factors[row] = (OWN_STRENGTH + right) / (OWN_STRENGTH + promised)
            survival[row] = min(1.0, factors[row] * _probability(outcomes[kinds[row], 0]))
    best, expected, size = chosen.copy(), np.float64(rows), np.int64(tokens)
    most = 0.0 if must_draft else MIN_GAIN * expected / costs[tokens]
    while size + 1 < len(costs):
        likeliest = np.int64(np.argmax(survival))
        if survival[likeliest] <= 0.0:
            break
        expected += survival[likeliest]
        size += 1
        chosen[likeliest] += 1
        depth = chosen[likeliest]
        if depth == counts[likeliest]:
            survival[likeliest] = 0.0
        else:
            survival[likeliest] *= min(
                1.0, factors[likeliest] * _probability(outcomes[kinds[likeliest], depth])
            )
        speed = expected / costs[size]
        if speed > most and (tokens > rows or _is_used(size)):
            most = speed
            best[:] = chosen
    return best


@compiled
def count_outcomes(drafts, seen, tokens, outcomes, own):
    """Learns from whether drafts were right, also those that were not computed: the sampled tokens tell about
    as many drafts.

    drafts: `Drafts`. seen, tokens: the number of tokens that each slot [slots] then sampled, and these
    tokens. outcomes, own: see `choose_drafts`
    """
    slots, counts, proposed, sources, matched = drafts
    draft, token = 0, 0
    for row in range(len(counts)):
        kind, of_slot = _kind(sources[row], matched[row]), own[slots[row]]
        for depth in range(min(counts[row], seen[row])):
            is_right = proposed[draft + depth] == tokens[token + depth]
            of_kind = outcomes[kind, depth]
            of_slot[0] = OWN_DECAY * of_slot[0] + _probability(of_kind)
            of_slot[1] = OWN_DECAY * of_slot[1] + np.float64(is_right)
            of_kind[0] = DECAY * of_kind[0] + 1.0
            of_kind[1] = DECAY * of_kind[1] + np.float64(is_right)
            if not is_right:
                break
        draft, token = draft + counts[row], token + seen[row]


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
        surprise = min(np.log(relative / factors[size]), MAX_SURPRISE)
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
