"""The end of filtering on CUDA: one program for each row bisects the keys and ids of the row's list."""

import triton
import triton.language as tl

from .filter_cuda import NO_LIST, TOP_K, largest_of, target_of
from .math_cuda import KEY_OF_MINUS_INFINITY, mass, value_of_key


@triton.jit
def cut_kernel(
    vocab,
    temperature,
    top_k,
    top_p,
    maxima,
    chunks,
    bounds,
    targets,
    lengths,
    listed,
    cuts,
    CHUNKS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Row r keeps the tokens above key cuts[r, 0], and of those with that key the ids up to cuts[r, 1].

    bounds, targets, lengths and listed: as the kernels of `filter_cuda` write them; cuts: int32 [rows, 2]
    """
    row = tl.program_id(0)
    kind, cut = tl.load(bounds + 3 * row), tl.load(bounds + 3 * row + 1)
    last_tie = tl.full((), 0, tl.int32) + vocab
    if kind != NO_LIST:
        largest, inverse = largest_of(maxima, row, chunks, CHUNKS), tl.div_rn(1.0, tl.load(temperature + row))
        ids, n, p = listed + row.to(tl.int64) * 2 * vocab, tl.load(lengths + 2 * row), tl.load(top_p + row)
        keys = ids + vocab
        lane = tl.arange(0, TILE)
        first_ids = tl.load(ids + lane, mask=lane < n, other=0)
        first = tl.load(keys + lane, mask=lane < n, other=KEY_OF_MINUS_INFINITY)
        counts = (lane < n).to(tl.int32)
        masses = tl.where(lane < n, mass((value_of_key(first) - largest) * inverse), 0)
        low, high = _span(first, keys, n, TILE)
        target = tl.full((), 0, tl.int64)
        if kind == TOP_K:
            k, total = tl.load(top_k + row), tl.full((), 0, tl.int64)
            if k < n:
                cut = _cut_at(
                    first, counts, keys, n, k.to(tl.int64), low, high, largest, inverse, False, TILE
                )
                ties = k - _weight_from(first, counts, keys, n, cut + 1, largest, inverse, False, TILE)
                last_tie = _nth_tie(first, first_ids, counts, ids, keys, n, vocab, cut, ties, TILE)
                total = ties * mass((value_of_key(cut) - largest) * inverse)
                total += _weight_from(first, masses, keys, n, cut + 1, largest, inverse, True, TILE)
            else:
                total = _weight_from(first, masses, keys, n, cut, largest, inverse, True, TILE)
            low = tl.maximum(low, cut)
            target = target_of(total, p)
        else:
            target = tl.load(targets + row)
        if p < 1:
            cut = _cut_at(first, masses, keys, n, target, low, high, largest, inverse, True, TILE)
            each = mass((value_of_key(cut) - largest) * inverse)
            missing = target - _weight_from(first, masses, keys, n, cut + 1, largest, inverse, True, TILE)
            number = (missing + each - 1) // each
            last_tie = _nth_tie(first, first_ids, counts, ids, keys, n, vocab, cut, number, TILE)
    tl.store(cuts + 2 * row, cut)
    tl.store(cuts + 2 * row + 1, last_tie)


@triton.jit
def _span(first, keys, n, TILE: tl.constexpr):
    """The lowest and the highest key of a list of n > 0 keys. `first` holds the first TILE of them."""
    low, high = tl.min(tl.where(tl.arange(0, TILE) < n, first, 0x7FFFFFFF)), tl.max(first)
    for start in range(TILE, n, TILE):
        lane = start + tl.arange(0, TILE)
        low = tl.minimum(low, tl.min(tl.load(keys + lane, mask=lane < n, other=0x7FFFFFFF)))
        high = tl.maximum(high, tl.max(tl.load(keys + lane, mask=lane < n, other=KEY_OF_MINUS_INFINITY)))
    return low, high


@triton.jit
def _cut_at(
    first, weights, keys, n, target, low, high, largest, inverse, by_mass: tl.constexpr, TILE: tl.constexpr
):
    """The largest key in low … high such that tokens from it upwards weigh at least target; low is one."""
    low, high = low.to(tl.int64), high.to(tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        floor = middle.to(tl.int32)
        if _weight_from(first, weights, keys, n, floor, largest, inverse, by_mass, TILE) >= target:
            low = middle
        else:
            high = middle - 1
    return low.to(tl.int32)


@triton.jit
def _weight_from(first, weights, keys, n, floor, largest, inverse, by_mass: tl.constexpr, TILE: tl.constexpr):
    """Mass, or number, of the listed tokens with key ≥ floor. first, weights: of the first TILE, held in
    registers"""
    weight = tl.sum(tl.where(first >= floor, weights, 0)).to(tl.int64)
    for start in range(TILE, n, TILE):
        lane = start + tl.arange(0, TILE)
        key = tl.load(keys + lane, mask=lane < n, other=KEY_OF_MINUS_INFINITY)
        found = (key >= floor) & (lane < n)
        if by_mass:
            weight += tl.sum(tl.where(found, mass((value_of_key(key) - largest) * inverse), 0))
        else:
            weight += tl.sum(found.to(tl.int64))
    return weight


@triton.jit
def _nth_tie(first, first_ids, counts, ids, keys, n, vocab, cut, number, TILE: tl.constexpr):
    """The number-th lowest id of the tokens whose key is `cut`; vocab - 1 if fewer tokens have that key."""
    high = tl.full((), 0, tl.int32) + vocab - 1
    all_ties = _ties_up_to(first, first_ids, counts, ids, keys, n, cut, high, TILE)
    low = tl.where(all_ties <= number, high, 0)
    while low < high:
        middle = (low + high) >> 1
        if _ties_up_to(first, first_ids, counts, ids, keys, n, cut, middle, TILE) >= number:
            high = middle
        else:
            low = middle + 1
    return low


@triton.jit
def _ties_up_to(first, first_ids, counts, ids, keys, n, cut, last, TILE: tl.constexpr):
    """The number of tokens whose key is `cut` and whose id is at most `last`."""
    ties = tl.sum(tl.where((first == cut) & (first_ids <= last), counts, 0))
    for start in range(TILE, n, TILE):
        lane = start + tl.arange(0, TILE)
        key = tl.load(keys + lane, mask=lane < n, other=KEY_OF_MINUS_INFINITY)
        token = tl.load(ids + lane, mask=lane < n, other=0)
        ties += tl.sum(((lane < n) & (key == cut) & (token <= last)).to(tl.int32))
    return ties
