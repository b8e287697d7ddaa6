"""Finds the cut of a row's filters, for numba.

A row's logits x [vocab] come with `maxima` [ceil(vocab / BLOCK)], the largest order key of each block, so
that blocks without a candidate are skipped. A cut is a pair (key, last): it keeps the tokens above the key,
and at it up to id last. A value's mass is its probability divided by the largest one, in units of
2^-40, rounded down.
"""

import numpy as np

from ..common.jit import compiled, inlined
from .math_cpu import (
    F32,
    KEY_OF_INFINITY,
    KEY_OF_MINUS_INFINITY,
    log,
    order_key,
    scaled_exp,
    value_of_key,
)

BLOCK = 64
MIN_KEY = KEY_OF_MINUS_INFINITY + 1
"""the smallest key of a finite value"""
FIRST_REACH = 8.0
FULL_REACH = 28.0
"""distance from the largest value, in units of the temperature, beyond which values have no mass"""
MASS_OF_LARGEST = 2.0**40
BINS = 2048
BINS_PER_UNIT = F32(64)
LAST_BIN = F32(BINS - 1)


@compiled
def take_block(x, block):
    return x[block * BLOCK : min(len(x), block * BLOCK + BLOCK)]


@compiled
def block_maxima(x, maxima):
    """Fill maxima; return the largest key, and whether x holds NaN."""
    largest, smallest = np.int32(KEY_OF_MINUS_INFINITY), np.int32(KEY_OF_INFINITY)
    whole = len(x) // BLOCK
    for block in range(whole):
        high, low = np.int32(KEY_OF_MINUS_INFINITY), np.int32(KEY_OF_INFINITY)
        for i in range(BLOCK):  # the constant lets LLVM unroll the loop, which is three times as fast
            key = order_key(x[block * BLOCK + i])
            high, low = max(high, key), min(low, key)
        maxima[block] = high
        largest, smallest = max(largest, high), min(smallest, low)
    if whole < len(maxima):
        maxima[whole], low = extremes(x[whole * BLOCK :])
        largest, smallest = max(largest, maxima[whole]), min(smallest, low)
    return largest, largest > KEY_OF_INFINITY or smallest < KEY_OF_MINUS_INFINITY


@compiled
def extremes(values):
    high, low = np.int32(KEY_OF_MINUS_INFINITY), np.int32(KEY_OF_INFINITY)
    for value in values:
        high, low = max(high, order_key(value)), min(low, order_key(value))
    return high, low


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
def total_mass(x, largest, inverse):
    total = np.int64(0)
    scaled = np.empty(4 * BLOCK, np.float32)
    for start in range(0, len(x), len(scaled)):
        part = x[start : start + len(scaled)]
        scale(part, largest, inverse, scaled)
        total += sum_values(scaled[: len(part)])
    return total


@compiled
def scale(values, largest, inverse, scaled):
    for i in range(len(values)):
        scaled[i] = scaled_exp((values[i] - largest) * inverse)


@compiled
def sum_values(scaled):
    total = np.int64(0)
    for i in range(len(scaled)):
        total += np.int64(scaled[i])
    return total


@compiled
def weight_from(x, maxima, floor, by_mass, largest, inverse):
    """The mass, or the number, of the values whose key is at least floor."""
    total, weights = np.int64(0), np.ones(BLOCK, np.float32)
    for block in range(len(maxima)):
        if maxima[block] >= floor:
            values = take_block(x, block)
            if by_mass:
                scale(values, largest, inverse, weights)
            for i in range(len(values)):
                total += np.int64(weights[i]) if order_key(values[i]) >= floor else np.int64(0)
    return total


@inlined
def weigh(value, by_mass, largest, inverse):
    return np.int64(scaled_exp((value - largest) * inverse)) if by_mass else np.int64(1)


@inlined
def find_bin(value, largest, inverse):
    return np.int32(min((largest - value) * inverse * BINS_PER_UNIT, LAST_BIN))


@compiled
def crossing(x, maxima, floor, target, by_mass, largest, inverse, values):
    """Returns (cut, above): the largest key such that values with keys ≥ cut weigh at least target, and the
    weight of the values above it.

    The values with keys ≥ floor must weigh at least target. A histogram over the distance from the largest
    finds the bin where target is reached; histograms over ever smaller ranges of keys find the cut in that
    bin. values is scratch.
    """
    bins = np.zeros(BINS, np.int64)
    weights, places = np.ones(BLOCK, np.float32), np.empty(BLOCK, np.int32)
    for block in range(len(maxima)):
        if maxima[block] >= floor:
            count_by_distance(take_block(x, block), by_mass, largest, inverse, bins, weights, places)
    above, number = np.int64(0), 0
    while above + bins[number] < target:
        above += bins[number]
        number += 1
    low = lowest_key_in_bin(number, largest, inverse)
    high = lowest_key_in_bin(number - 1, largest, inverse) - 1
    n = 0
    for block in range(len(maxima)):
        if maxima[block] >= low:
            n = collect(take_block(x, block), low, high, values, n)
    return crossing_within(values[:n], low, high, above, target, by_mass, largest, inverse, bins)


@compiled
def count_by_distance(values, by_mass, largest, inverse, bins, weights, places):
    """Add the values' weights to bins; weights (initially ones) and places are scratch."""
    for i in range(len(values)):
        places[i] = find_bin(values[i], largest, inverse)
    if by_mass:
        scale(values, largest, inverse, weights)
    for i in range(len(values)):
        bins[places[i]] += np.int64(weights[i])


@compiled
def lowest_key_in_bin(number, largest, inverse):
    """The lowest key of a value in this bin or in a nearer bin; for bin -1, a key above the largest."""
    low, high = np.int64(KEY_OF_MINUS_INFINITY), np.int64(order_key(largest)) + 1
    while low < high:
        middle = (low + high) >> 1
        if find_bin(value_of_key(np.int32(middle)), largest, inverse) <= number:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def collect(block, low, high, values, n):
    """Append the values with keys in low … high to values [:n]; return the new length."""
    for value in block:
        values[n] = value
        n += (order_key(value) >= low) & (order_key(value) <= high)
    return n


@compiled
def crossing_within(values, low, high, above, target, by_mass, largest, inverse, bins):
    """`crossing` among values with keys in low … high; `above` is the weight of larger values."""
    while low < high:
        shift = 0
        while (high - low) >> shift >= BINS:
            shift += 1
        bins[:] = 0
        for value in values:
            key = np.int64(order_key(value))
            if low <= key <= high:
                bins[(key - low) >> shift] += weigh(value, by_mass, largest, inverse)
        at = (high - low) >> shift
        while above + bins[at] < target:
            above += bins[at]
            at -= 1
        low += at << shift
        high = min(high, low + (1 << shift) - 1)
    return low, above


@compiled
def nth_with_key(x, maxima, key, number):
    """The id of the number-th value with this key, which must exist."""
    for block in range(len(maxima)):
        if maxima[block] >= key:
            for i in range(block * BLOCK, min(len(x), block * BLOCK + BLOCK)):
                number -= order_key(x[i]) == key
                if number == 0:
                    return i
    return len(x)


@compiled
def kth_largest(keys, k):
    """The k-th largest key; k ≤ len(keys)."""
    low, high = np.int64(KEY_OF_MINUS_INFINITY), np.int64(KEY_OF_INFINITY)
    while low < high:
        middle = (low + high + 1) >> 1
        if count_from(keys, np.int32(middle)) >= k:
            low = middle
        else:
            high = middle - 1
    return low


@compiled
def count_from(keys, floor):
    count = np.int32(0)
    for i in range(len(keys)):
        count = np.int32(count + np.int32(keys[i] >= floor))
    return count


@compiled
def lowest_key_within(distance, largest, inverse):
    """The lowest key of a value with (value - largest) * inverse ≥ distance, which is ≤ 0."""
    low, high = np.int64(MIN_KEY), np.int64(order_key(largest))
    while low < high:
        middle = (low + high) >> 1
        if (value_of_key(np.int32(middle)) - largest) * inverse >= distance:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def find_cut(x, maxima, largest, inverse, top_k, top_p, min_p, values):
    """The cut that min-p, top-k and top-p make."""
    cut, last = np.int64(MIN_KEY), len(x)
    if min_p > 0:
        cut = lowest_key_within(log(min_p), largest, inverse)
    if top_k > 0:
        cut, last = top_k_cut(x, maxima, cut, top_k, largest, inverse, values)
    if top_p < 1:
        if top_k > 0 or min_p > 0:
            total = mass_of_kept(x, maxima, cut, last, largest, inverse)
            cut, last = top_p_cut(x, maxima, cut, target_mass(total, top_p), largest, inverse, values)
        else:
            target = target_mass(total_mass(x, largest, inverse), top_p)
            floor = nucleus_floor(x, maxima, target, top_p, largest, inverse)
            cut, last = top_p_cut(x, maxima, floor, target, largest, inverse, values)
    return cut, last


@compiled
def top_k_cut(x, maxima, floor, k, largest, inverse, values):
    if k <= len(maxima):
        floor = max(floor, kth_largest(maxima, k))
    if weight_from(x, maxima, floor, False, largest, inverse) <= k:
        return floor, len(x)
    cut, above = crossing(x, maxima, floor, k, False, largest, inverse, values)
    return cut, nth_with_key(x, maxima, cut, k - above)


@compiled
def top_p_cut(x, maxima, floor, target, largest, inverse, values):
    cut, above = crossing(x, maxima, floor, target, True, largest, inverse, values)
    each = weigh(value_of_key(np.int32(cut)), True, largest, inverse)
    return cut, nth_with_key(x, maxima, cut, (target - above + each - 1) // each)


@compiled
def mass_of_kept(x, maxima, cut, last, largest, inverse):
    total = weight_from(x, maxima, cut + 1, True, largest, inverse)
    each = weigh(value_of_key(np.int32(cut)), True, largest, inverse)
    for block in range(min(len(maxima), last // BLOCK + 1)):
        if maxima[block] >= cut:
            for i in range(block * BLOCK, min(len(x), last + 1, block * BLOCK + BLOCK)):
                total += each if order_key(x[i]) == cut else 0
    return total


@compiled
def nucleus_floor(x, maxima, target, top_p, largest, inverse):
    """A key such that values with keys ≥ it have the target's mass.

    Values farther than r from the largest have at most the mass len(x) * exp(-r) together. So
    r = log(len(x) / allowed) suffices, where top-p may leave out the mass `allowed`. Often less suffices.
    """
    left_out = (1 - top_p) / top_p * target / MASS_OF_LARGEST
    reach = min(FULL_REACH, np.log(len(x) / left_out) + 0.01)
    if reach > FIRST_REACH:
        near = lowest_key_within(F32(-FIRST_REACH), largest, inverse)
        if weight_from(x, maxima, near, True, largest, inverse) >= target:
            return near
    return lowest_key_within(F32(-reach), largest, inverse)


@compiled
def target_mass(total, top_p):
    return max(1, np.int64(np.float64(top_p) * np.float64(total)))
