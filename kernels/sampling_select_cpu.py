# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Which of a row's tokens the filters leave, for numba.

A row's logits x [vocab] come with `maxima` [ceil(vocab / BLOCK)], the largest order key of each block, so
that blocks without a candidate are skipped. Candidates are (ids, values) in order of rising id. A value's
mass is its probability relative to the largest's, in units of 2^-40, rounded down.
"""

import numpy as np

from .sampling_jit import compiled, inlined
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
FIRST_REACH = F32(8)
FULL_REACH = F32(28)
"""farther from the largest, in units of the temperature, values have no mass"""
CHUNK = 256
BINS = 2048
BINS_PER_UNIT = F32(64)
LAST_BIN = F32(BINS - 1)


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


@inlined
def bin_of(value, largest, inverse):
    return np.int32(min((largest - value) * inverse * BINS_PER_UNIT, LAST_BIN))


@compiled
def crossing(values, target, by_mass, largest, inverse):
    """The largest cut such that values with keys from it upwards weigh at least target, and the weight above it.

    They weigh their mass or one each; together at least target. A histogram over the distance from the largest
    finds the bin where target is reached, histograms over ever smaller ranges of keys the cut within it.
    """
    bins, high_bin = np.zeros(BINS, np.int64), 0
    count_by_distance(values, by_mass, largest, inverse, bins)
    above = np.int64(0)
    while above + bins[high_bin] < target:
        above += bins[high_bin]
        high_bin += 1
    low = lowest_key_in_bin(high_bin, largest, inverse)
    high = lowest_key_in_bin(high_bin - 1, largest, inverse) - 1
    while low < high:
        shift = 0
        while (high - low) >> shift >= BINS:
            shift += 1
        bins[:] = 0
        for value in values:
            key = np.int64(order_key(value))
            if low <= key <= high:
                bins[(key - low) >> shift] += weight_of(value, by_mass, largest, inverse)
        at = (high - low) >> shift
        while above + bins[at] < target:
            above += bins[at]
            at -= 1
        low += at << shift
        high = min(high, low + (1 << shift) - 1)
    return low, above


@compiled
def weight_of(value, by_mass, largest, inverse):
    return np.int64(scaled_exp((value - largest) * inverse)) if by_mass else np.int64(1)


@compiled
def count_by_distance(values, by_mass, largest, inverse, bins):
    weights, places = np.ones(CHUNK, np.float32), np.empty(CHUNK, np.int32)
    for start in range(0, len(values), CHUNK):
        n = min(CHUNK, len(values) - start)
        for i in range(n):
            places[i] = bin_of(values[start + i], largest, inverse)
        if by_mass:
            for i in range(n):
                weights[i] = scaled_exp((values[start + i] - largest) * inverse)
        for i in range(n):
            bins[places[i]] += np.int64(weights[i])


@compiled
def lowest_key_in_bin(number, largest, inverse):
    """The lowest key of a value in this bin or one nearer to the largest; above the largest's for bin -1."""
    low, high = np.int64(KEY_OF_MINUS_INFINITY), np.int64(order_key(largest)) + 1
    while low < high:
        middle = (low + high) >> 1
        if bin_of(value_of_key(np.int32(middle)), largest, inverse) <= number:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def keep(ids, values, cut, ties):
    """Keep, in place, the candidates above the cut and the first `ties` at it; return their number."""
    n = 0
    for i in range(len(ids)):
        key = order_key(values[i])
        at_cut = (key == cut) & (ties > 0)
        ids[n], values[n] = ids[i], values[i]
        n += (key > cut) | at_cut
        ties -= at_cut
    return n


@compiled
def kth_largest(keys, k):
    values = np.empty(len(keys), np.float32)
    for i in range(len(keys)):
        values[i] = value_of_key(keys[i])
    return crossing(values, k, False, max(values), F32(1))[0]


@compiled
def keep_top_k(ids, values, k, largest):
    cut, above = crossing(values, k, False, largest, F32(1))
    return keep(ids, values, cut, k - above)


@compiled
def keep_top_p(ids, values, target, largest, inverse):
    """Keep the shortest prefix, in order of falling value, whose mass reaches target."""
    cut, above = crossing(values, target, True, largest, inverse)
    each = weight_of(value_of_key(np.int32(cut)), True, largest, inverse)
    return keep(ids, values, cut, (target - above + each - 1) // each)


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
        n = keep_top_k(ids[:n], values[:n], top_k, largest)
    if top_p < 1:
        target = target_mass(total_mass(values[:n], largest, inverse), top_p)
        n = keep_top_p(ids[:n], values[:n], target, largest, inverse)
    return n


@compiled
def nucleus(x, maxima, largest, inverse, top_p, ids, values):
    """As `filtered` for top-p alone: candidates are sought near the largest first."""
    target = target_mass(total_mass(x, largest, inverse), top_p)
    n = gather(x, maxima, lowest_key_within(-FIRST_REACH, largest, inverse), ids, values)
    if total_mass(values[:n], largest, inverse) < target:
        n = gather(x, maxima, lowest_key_within(-FULL_REACH, largest, inverse), ids, values)
    return keep_top_p(ids[:n], values[:n], target, largest, inverse)


@compiled
def target_mass(total, top_p):
    return max(1, np.int64(np.float64(top_p) * np.float64(total)))
