"""Sampling of one row, for numba, and the kernel that samples all rows."""

import numba
import numpy as np

from ..common.jit import compiled, inlined
from ..common.numba_tools import fetch_add, pointer
from ..common.threads import ParallelKernel
from .batch import LOGPROB_FLOOR, NOT_A_NUMBER, NOTHING_ALLOWED
from .math_cpu import F32, KEY_OF_INFINITY, KEY_OF_MINUS_INFINITY, order_key, value_of_key
from .race_cpu import race
from .select_cpu import (
    BLOCK,
    MASS_OF_LARGEST,
    MIN_KEY,
    block_maxima,
    find_cut,
    first_with_key,
    top_k_cut,
    total_mass,
)

(
    SEED,
    POSITION,
    TOP_K,
    MASK,
    HOST_MASK,
    ENTRY,
    BANNED_FROM,
    BANNED_TO,
    BIAS_FROM,
    BIAS_TO,
    OFFSET,
    INTEGERS,
) = range(12)
"""Columns of a row's int64 parameters. A mask or penalty entry of -1 means none. OFFSET is the number of
drafts before the row."""

INVERSE, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY, FLOATS = range(7)
"""Columns of a row's float32 parameters; INVERSE is 1 / temperature, or 0 for greedy rows."""

(
    NEXT,
    ROWS,
    VOCAB,
    WITH_LOGPROBS,
    TOPS,
    ROW_INTEGERS,
    ROW_FLOATS,
    LOGITS,
    MASK_BITS,
    HOST_MASK_BITS,
    BANNED_IDS,
    BIAS_IDS,
    BIAS_VALUES,
    PROMPT_SEEN,
    OUTPUT_COUNTS,
    DRAFTS,
    TOKENS,
    BAD,
    LOGPROBS,
    TOP_IDS,
    TOP_LOGPROBS,
    ARGUMENTS,
) = range(22)
"""Arguments of `sample_rows`: a row counter, sizes, addresses of contiguous arrays."""

_FLOAT, _INT, _LONG = np.float32(0), np.int32(0), np.int64(0)
_MINUS_INFINITY = F32(-np.inf)


@inlined
def array(address, kind, rows, columns):
    return numba.carray(pointer(address, kind), (rows, columns))


@ParallelKernel
def sample_rows(arguments):
    """Sample the rows that this thread takes from the counter; scratch belongs to the thread."""
    sizes = numba.carray(arguments, (ARGUMENTS,))
    maxima, scratch, values = allocate_scratch(sizes[VOCAB])
    while True:
        row = fetch_add(arguments, 1)
        if row >= sizes[ROWS]:
            break
        sample_row(sizes, row, maxima, scratch, values)


@inlined
def allocate_scratch(vocab):
    """A thread's memory for `sample_row`."""
    blocks = (vocab + BLOCK - 1) // BLOCK
    return np.empty(blocks, np.int32), np.empty(vocab, np.float32), np.empty(vocab, np.float32)


@compiled
def sample_row(sizes, row, maxima, scratch, values):
    rows, vocab, tops = sizes[ROWS], sizes[VOCAB], sizes[TOPS]
    integers = array(sizes[ROW_INTEGERS], _LONG, rows, INTEGERS)[row]
    floats = array(sizes[ROW_FLOATS], _FLOAT, rows, FLOATS)[row]
    raw = array(sizes[LOGITS], _FLOAT, rows, vocab)[row]
    tokens, bad = array(sizes[TOKENS], _INT, 1, rows)[0], array(sizes[BAD], _INT, 1, rows)[0]
    tokens[row], bad[row] = 0, NOT_A_NUMBER
    highest, has_nan = block_maxima(raw, maxima)
    if has_nan:
        return
    bad[row] = NOTHING_ALLOWED
    log_total = np.float64(0)
    finite = KEY_OF_MINUS_INFINITY < highest < KEY_OF_INFINITY
    if sizes[WITH_LOGPROBS] and finite:
        log_total = log_of_total(raw, value_of_key(highest))
        if tops > 0:
            top_ids = array(sizes[TOP_IDS], _INT, rows, tops)[row]
            top_logprobs = array(sizes[TOP_LOGPROBS], _FLOAT, rows, tops)[row]
            list_tops(raw, maxima, highest, log_total, values, top_ids, top_logprobs)
    x = raw
    if is_processed(integers):
        x = scratch
        x[:] = raw
        process(sizes, row, integers, floats, x)
        highest, _ = block_maxima(x, maxima)
    if not KEY_OF_MINUS_INFINITY < highest < KEY_OF_INFINITY:
        return
    tokens[row], bad[row] = choose(x, maxima, highest, integers, floats, values), 0
    if sizes[WITH_LOGPROBS] and finite:
        logprobs = array(sizes[LOGPROBS], _FLOAT, 1, rows)[0]
        logprobs[row] = max(F32(LOGPROB_FLOOR), F32(raw[tokens[row]] - log_total))


@compiled
def is_processed(integers):
    listed = integers[BANNED_FROM] < integers[BANNED_TO] or integers[BIAS_FROM] < integers[BIAS_TO]
    return listed or integers[MASK] >= 0 or integers[HOST_MASK] >= 0 or integers[ENTRY] >= 0


@compiled
def process(sizes, row, integers, floats, x):
    vocab = len(x)
    words = (vocab + 31) // 32
    for mask, bits in ((MASK, MASK_BITS), (HOST_MASK, HOST_MASK_BITS)):
        if integers[mask] >= 0:
            apply_mask(x, array(sizes[bits], _INT, integers[mask] + 1, words)[integers[mask]])
    start, end = integers[BANNED_FROM], integers[BANNED_TO]
    ban(x, array(sizes[BANNED_IDS], _INT, 1, end)[0, start:end])
    start, end = integers[BIAS_FROM], integers[BIAS_TO]
    ids, values = array(sizes[BIAS_IDS], _INT, 1, end)[0], array(sizes[BIAS_VALUES], _FLOAT, 1, end)[0]
    add_bias(x, ids[start:end], values[start:end])
    entry = integers[ENTRY]
    if entry >= 0:
        seen = array(sizes[PROMPT_SEEN], _INT, entry + 1, words)[entry]
        counts = array(sizes[OUTPUT_COUNTS], _INT, entry + 1, vocab)[entry]
        offset = integers[OFFSET]
        drafts = array(sizes[DRAFTS], _INT, 1, row)[0, row - offset :]
        before = np.empty(offset, np.float32)
        for i in range(offset):
            before[i] = x[drafts[i]]
        penalise(x, seen, counts, floats[REPETITION], floats[PRESENCE], floats[FREQUENCY])
        for i in range(offset):
            token, repeated = drafts[i], np.int32(0)
            for draft in drafts:
                repeated += np.int32(draft == token)
            x[token] = penalise_logit(
                before[i],
                counts[token] + repeated,
                True,
                floats[REPETITION],
                floats[PRESENCE],
                floats[FREQUENCY],
            )


@compiled
def apply_mask(x, words):
    """Set the logits whose bit is 0 to minus infinity."""
    for word in range(len(words)):
        bits = np.uint32(words[word])
        start = 32 * word
        if start + 32 <= len(x):
            for i in range(32):
                x[start + i] = x[start + i] if (bits >> np.uint32(i)) & np.uint32(1) else _MINUS_INFINITY
        else:
            for i in range(len(x) - start):
                x[start + i] = x[start + i] if (bits >> np.uint32(i)) & np.uint32(1) else _MINUS_INFINITY


@compiled
def ban(x, ids):
    for token in ids:
        x[token] = _MINUS_INFINITY


@compiled
def add_bias(x, ids, values):
    for i in range(len(ids)):
        x[ids[i]] += values[i]


@compiled
def penalise(x, prompt_seen, counts, repetition, presence, frequency):
    for i in range(len(x)):
        seen = counts[i] > 0 or (np.uint32(prompt_seen[i >> 5]) >> np.uint32(i & 31)) & np.uint32(1)
        x[i] = penalise_logit(x[i], counts[i], seen, repetition, presence, frequency)


@inlined
def penalise_logit(value, count, seen, repetition, presence, frequency):
    """Returns a token's logit after penalties. count: how often the output has the token; seen: whether the
    prompt or the output has it"""
    if not seen:
        return value
    value = value / repetition if value > 0 else value * repetition
    value = value - frequency * F32(count)
    return value - presence if count > 0 else value


@compiled
def choose(x, maxima, highest, integers, floats, values):
    leader = first_with_key(x, maxima, highest)
    inverse = floats[INVERSE]
    if inverse == 0:
        return leader
    largest, k = value_of_key(highest), integers[TOP_K]
    cut, last = find_cut(x, maxima, largest, inverse, k, floats[TOP_P], floats[MIN_P], values)
    seed, position = np.uint64(integers[SEED]), np.uint64(integers[POSITION])
    return race(x, maxima, largest, inverse, seed, position, leader, cut, last)


@compiled
def log_of_total(x, largest):
    return np.float64(largest) + np.log(total_mass(x, largest, F32(1)) / MASS_OF_LARGEST)


@compiled
def list_tops(x, maxima, highest, log_total, values, top_ids, top_logprobs):
    largest = value_of_key(highest)
    cut, last = top_k_cut(x, maxima, MIN_KEY - 1, len(top_ids), largest, F32(1), values)
    found = 0
    for block in range(len(maxima)):
        if maxima[block] >= cut:
            for i in range(block * BLOCK, min(len(x), block * BLOCK + BLOCK)):
                key = order_key(x[i])
                if key > cut or (key == cut and i <= last):
                    top_ids[found], values[found] = i, x[i]
                    found += 1
    # Sorts the few remaining values stably: by descending value, then ascending id.
    order = np.argsort(-values[:found], kind="mergesort")
    top_ids[:] = top_ids[order]
    for rank in range(found):
        top_logprobs[rank] = max(F32(LOGPROB_FLOOR), F32(values[order[rank]] - log_total))
