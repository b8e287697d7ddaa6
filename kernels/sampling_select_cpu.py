# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Which of a row's tokens the filters leave, for numba.

A row's logits x [vocab] come with `maxima` [ceil(vocab / BLOCK)], the largest order key of each block, so
that blocks without a candidate are skipped. Candidates are (ids, values) in order of rising id. A value's
mass is its probability relative to the largest's, in units of 2^-40, rounded down.
"""

import numpy as np

from .sampling_jit import compiled
from .sampling_math_cpu import (
    F32,
    KEY_OF_INFINITY,
    KEY_OF_MINUS_INFINITY,
    log,
    order_key,
    scaled_exp,
    value_of_key,
)

BLOCK = 64
LOWEST_KEY = KEY_OF_MINUS_INFINITY + 1
"""of the finite values"""
FIRST_REACH = F32(4)
FULL_REACH = F32(28)
"""farther from the largest, in units of the temperature, values have no mass"""
BINS = 2048
CHUNK = 256


@compiled
def block_maxima(x, maxima):
    """Fill maxima; return the largest key, and whether x holds NaN."""
    largest, smallest = np.int32(KEY_OF_MINUS_INFINITY), np.int32(KEY_OF_INFINITY)
    for block in range(len(maxima)):
        high, low = np.int32(KEY_OF_MINUS_INFINITY), np.int32(KEY_OF_INFINITY)
        for i in range(block * BLOCK, min(len(x), block * BLOCK + BLOCK)):
            key = order_key(x[i])
            high = max(high, key)
            low = min(low, key)
        maxima[block] = high
        largest, smallest = max(largest, high), min(smallest, low)
    return largest, largest > KEY_OF_INFINITY or smallest < KEY_OF_MINUS_INFINITY


@compiled
def first_with_key(x, maxima, key):
    """The lowest id whose logit has this key."""
    for block in range(len(maxima)):
        if maxima[block] >= key:
            for i in range(block * BLOCK, min(len(x), block * BLOCK + BLOCK)):
                if order_key(x[i]) == key:
                    return i
    return 0


@compiled
def total_mass(values, largest, inverse):
    total = np.int64(0)
    scaled = np.empty(CHUNK, np.float32)
    for start in range(0, len(values), CHUNK):
        n = min(CHUNK, len(values) - start)
        # Two loops, since one would be vectorised for the width of int64 only.
        for i in range(n):
            scaled[i] = scaled_exp((values[start + i] - largest) * inverse)
        for i in range(n):
            total += np.int64(scaled[i])
    return total


@compiled
def masses_of(values, largest, inverse):
    masses = np.empty(len(values), np.int64)
    for i in range(len(values)):
        masses[i] = np.int64(scaled_exp((values[i] - largest) * inverse))
    return masses


@compiled
def gather(x, maxima, floor, ids, values):
    """Write the candidates whose key is at least floor to ids and values; return their number."""
    n = 0
    for block in range(len(maxima)):
        if maxima[block] >= floor:
            for i in range(block * BLOCK, min(len(x), block * BLOCK + BLOCK)):
                ids[n] = i
                values[n] = x[i]
                n += order_key(x[i]) >= floor
    return n


@compiled
def lowest_key_within(distance, largest, inverse):
    """The lowest key of a value with (value - largest) * inverse ≥ distance, which is ≤ 0."""
    low, high = np.int64(LOWEST_KEY), np.int64(order_key(largest))
    while low < high:
        middle = (low + high) >> 1
        if (value_of_key(np.int32(middle)) - largest) * inverse >= distance:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def crossing(keys, weights, target):
    """The largest cut such that keys from it upwards weigh at least target, and the weight above the cut.

    Histograms over ever smaller ranges of keys: at most three, since BINS is 2^11 and keys have 32 bits.
    """
    low, high = np.int64(min(keys)), np.int64(max(keys))
    above = np.int64(0)
    bins = np.empty(BINS, np.int64)
    while low < high:
        shift = 0
        while (high - low) >> shift >= BINS:
            shift += 1
        bins[:] = 0
        for i in range(len(keys)):
            if low <= keys[i] <= high:
                bins[(keys[i] - low) >> shift] += weights[i]
        at = (high - low) >> shift
        while above + bins[at] < target:
            above += bins[at]
            at -= 1
        low += at << shift
        high = min(high, low + (1 << shift) - 1)
    return low, above


@compiled
def keep(ids, values, keys, cut, ties):
    """Keep, in place, the candidates above the cut and the first `ties` at it; return their number."""
    n = 0
    for i in range(len(keys)):
        at_cut = keys[i] == cut and ties > 0
        ids[n], values[n] = ids[i], values[i]
        n += keys[i] > cut or at_cut
        ties -= at_cut
    return n


@compiled
def keys_of(values):
    keys = np.empty(len(values), np.int32)
    for i in range(len(values)):
        keys[i] = order_key(values[i])
    return keys


@compiled
def kth_largest(keys, k):
    return crossing(keys, np.ones(len(keys), np.int64), k)[0]


@compiled
def keep_top_k(ids, values, k):
    keys = keys_of(values)
    cut, above = crossing(keys, np.ones(len(keys), np.int64), k)
    return keep(ids, values, keys, cut, k - above)


@compiled
def keep_top_p(ids, values, target, largest, inverse):
    """Keep the shortest prefix, in order of falling value, whose mass reaches target."""
    keys = keys_of(values)
    cut, above = crossing(keys, masses_of(values, largest, inverse), target)
    each = np.int64(scaled_exp((value_of_key(np.int32(cut)) - largest) * inverse))
    return keep(ids, values, keys, cut, (target - above + each - 1) // each)


@compiled
def filtered(x, maxima, largest, inverse, top_k, top_p, min_p, ids, values):
    """Write the candidates that min-p, top-k and top-p leave; return their number."""
    floor = np.int64(LOWEST_KEY)
    if min_p > 0:
        floor = lowest_key_within(log(min_p), largest, inverse)
    if top_k <= 0 and min_p <= 0:
        return nucleus(x, maxima, largest, inverse, top_p, ids, values)
    if 0 < top_k <= len(maxima):
        floor = max(floor, kth_largest(maxima, top_k))
    n = gather(x, maxima, floor, ids, values)
    if 0 < top_k < n:
        n = keep_top_k(ids[:n], values[:n], top_k)
    if top_p < 1:
        target = target_mass(total_mass(values[:n], largest, inverse), top_p)
        n = keep_top_p(ids[:n], values[:n], target, largest, inverse)
    return n


@compiled
def nucleus(x, maxima, largest, inverse, top_p, ids, values):
    """As `filtered` for top-p alone: candidates are sought farther and farther from the largest."""
    target = target_mass(total_mass(x, largest, inverse), top_p)
    reach = FIRST_REACH
    while True:
        n = gather(x, maxima, lowest_key_within(-reach, largest, inverse), ids, values)
        if reach >= FULL_REACH or total_mass(values[:n], largest, inverse) >= target:
            return keep_top_p(ids[:n], values[:n], target, largest, inverse)
        reach = reach + reach


@compiled
def target_mass(total, top_p):
    return max(1, np.int64(np.float64(top_p) * np.float64(total)))
