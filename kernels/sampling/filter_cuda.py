"""First half of min-p, top-k and top-p on CUDA: lists a row's candidates, among which `cut_cuda` cuts.

min-p needs no list. For top-k the list has the tokens above a bound. For top-p alone it has the tokens of one
bucket of a histogram of probabilities. Programs exchange data only between launches.
"""

import triton
import triton.language as tl

from .math_cuda import KEY_OF_MINUS_INFINITY, log, mass, order_key, value_of_key
from .process_cuda import load_processed, tokens_from
from .span_cuda import NEAR, range_of_cut

GREEDY_BELOW = tl.constexpr(1e-5)
UNBOUNDED = tl.constexpr(float("inf"))
NO_LIST, TOP_K, TOP_P = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def bound_kernel(
    x,
    row_stride,
    vocab,
    mask_index,
    mask_bits,
    temperature,
    top_k,
    top_p,
    min_p,
    maxima,
    chunks,
    sub_maxima,
    sub_blocks,
    bounds,
    ranges,
    lengths,
    weights,
    CHUNKS: tl.constexpr,
    SUB_BLOCKS: tl.constexpr,
    BUCKETS: tl.constexpr,
    SAMPLES: tl.constexpr,
):
    """One program for row r: bounds[r] becomes (kind of list, its lowest key, its highest key), ranges[r] the
    distances of its buckets: see `bucket_of`. Tokens below the lowest key are not kept.

    maxima: float32 [rows, chunks]; sub_maxima: int32 [rows, sub_blocks], keys; bounds: int32 [rows, 3];
    ranges: float32 [rows, 2]. lengths, int32 [rows, 2], and weights, int64 [rows, BUCKETS], become 0.
    """
    row = tl.program_id(0)
    largest, warmth = largest_of(maxima, row, chunks, CHUNKS), tl.load(temperature + row)
    k, p, m = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
    kind, floor = tl.full((), 0, tl.int32), tl.full((), KEY_OF_MINUS_INFINITY + 1, tl.int32)
    begin, width = tl.full((), 0.0, tl.float32), tl.full((), NEAR, tl.float32)
    own = sub_maxima + row * sub_blocks
    if (warmth >= GREEDY_BELOW) & (tl.abs(largest) < UNBOUNDED):
        inverse = tl.div_rn(1.0, warmth)
        if m > 0:
            floor = _min_p_key(largest, inverse, log(m))
        if k > 0:
            kind = tl.full((), TOP_K, tl.int32)
            floor = tl.maximum(floor, _kth_key(own, sub_blocks, k, SUB_BLOCKS))
        elif p < 1:
            kind = tl.full((), TOP_P, tl.int32)
            begin, width = range_of_cut(
                x,
                row,
                row_stride,
                vocab,
                mask_index,
                mask_bits,
                own,
                sub_blocks,
                largest,
                inverse,
                floor,
                p,
                SUB_BLOCKS,
                SAMPLES,
            )
    tl.store(bounds + 3 * row, kind)
    tl.store(bounds + 3 * row + 1, floor)
    tl.store(bounds + 3 * row + 2, 0x7FFFFFFF)
    tl.store(ranges + 2 * row, begin)
    tl.store(ranges + 2 * row + 1, width)
    tl.store(lengths + 2 * row, 0)
    tl.store(lengths + 2 * row + 1, 0)
    bucket = tl.arange(0, BUCKETS)
    tl.store(weights + row * BUCKETS + bucket, tl.zeros((BUCKETS,), tl.int64))


@triton.jit(do_not_specialize_on_alignment=["x"])
def weigh_kernel(
    x,
    row_stride,
    vocab,
    mask_index,
    mask_bits,
    temperature,
    maxima,
    chunks,
    bounds,
    ranges,
    weights,
    CHUNKS: tl.constexpr,
    STRETCH: tl.constexpr,
    BUCKETS: tl.constexpr,
):
    """One program for stretch s of row r, for TOP_P: adds the masses of its tokens to their buckets, but
    counts the first and the last bucket in registers.

    Threads load single logits, as they add single masses: with wider loads the masses would change threads.
    """
    row = tl.program_id(0)
    if tl.load(bounds + 3 * row) == TOP_P:
        floor = tl.load(bounds + 3 * row + 1)
        largest = largest_of(maxima, row, chunks, CHUNKS)
        token = tl.program_id(1) * STRETCH + tl.arange(0, STRETCH)
        value = load_processed(x, row, row_stride, token, vocab, mask_index, mask_bits)
        distance = (value - largest) * tl.div_rn(1.0, tl.load(temperature + row))
        bucket = bucket_of(distance, ranges + 2 * row, BUCKETS)
        weight = tl.where(order_key(value) >= floor, mass(distance), 0)
        own = weights + row * BUCKETS
        between = (bucket > 0) & (bucket < BUCKETS - 1)
        tl.atomic_add(own + bucket, weight, mask=between & (weight > 0), sem="relaxed")
        tl.atomic_add(own, tl.sum(tl.where(bucket == 0, weight, 0)), sem="relaxed")
        tl.atomic_add(own + BUCKETS - 1, tl.sum(tl.where(bucket == BUCKETS - 1, weight, 0)), sem="relaxed")


@triton.jit
def boundary_kernel(
    temperature,
    top_p,
    maxima,
    chunks,
    bounds,
    ranges,
    weights,
    targets,
    CHUNKS: tl.constexpr,
    BUCKETS: tl.constexpr,
):
    """One program for row r, for TOP_P: bounds[r] gets the keys of the bucket in which the mass reaches p,
    and targets[r], int64, the mass to reach within it."""
    row = tl.program_id(0)
    if tl.load(bounds + 3 * row) == TOP_P:
        bucket = tl.arange(0, BUCKETS)
        weight = tl.load(weights + row * BUCKETS + bucket)
        target = target_of(tl.sum(weight), tl.load(top_p + row))
        boundary = tl.sum((tl.cumsum(weight) < target).to(tl.int32))
        tl.store(targets + row, target - tl.sum(tl.where(bucket < boundary, weight, 0)))
        largest, inverse = largest_of(maxima, row, chunks, CHUNKS), tl.div_rn(1.0, tl.load(temperature + row))
        own_range = ranges + 2 * row
        lowest = _first_key_of(boundary, own_range, largest, inverse, BUCKETS)
        tl.store(bounds + 3 * row + 1, tl.maximum(lowest, tl.load(bounds + 3 * row + 1)))
        tl.store(bounds + 3 * row + 2, _first_key_of(boundary - 1, own_range, largest, inverse, BUCKETS) - 1)


@triton.jit
def gather_kernel(
    x,
    row_stride,
    vocab,
    mask_index,
    mask_bits,
    maxima,
    chunks,
    bounds,
    lengths,
    listed,
    STRETCH: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program for stretch s of row r: adds the stretch's tokens to the row's lists, if the row has lists.

    listed: int32 [rows, 2, vocab], ids and keys in any order. The first lengths[r, 0] are the tokens from
    which the row is cut, the last lengths[r, 1] the tokens above those, which are all kept.
    """
    row, stretch = tl.program_id(0), tl.program_id(1)
    lowest, highest = tl.load(bounds + 3 * row + 1), tl.load(bounds + 3 * row + 2)
    peak = tl.load(maxima + row * chunks + stretch * STRETCH // CHUNK)
    if (tl.load(bounds + 3 * row) != NO_LIST) & (order_key(peak) >= lowest):
        token = tokens_from(stretch * STRETCH, STRETCH)
        key = order_key(load_processed(x, row, row_stride, token, vocab, mask_index, mask_bits))
        ids, counts = listed + row.to(tl.int64) * 2 * vocab, lengths + 2 * row
        _append(ids, vocab, counts, token, key, (key >= lowest) & (key <= highest), False)
        _append(ids, vocab, counts + 1, token, key, key > highest, True)


@triton.jit
def _append(ids, vocab, count, token, key, wanted, at_end: tl.constexpr):
    """Adds the wanted tokens of `tokens_from` to the list at the start or end of a row's memory."""
    ones = wanted.to(tl.int32)
    of_words = tl.sum(ones, axis=1)
    number = tl.sum(of_words)
    if number > 0:
        before = tl.cumsum(of_words) - of_words + tl.atomic_add(count, number, sem="relaxed")
        place = before[:, None] + tl.cumsum(ones, axis=1) - 1
        if at_end:
            place = vocab - 1 - place
        tl.store(ids + place, token, mask=wanted)
        tl.store(ids + vocab + place, key, mask=wanted)


@triton.jit
def largest_of(maxima, row, chunks, CHUNKS: tl.constexpr):
    lane = tl.arange(0, CHUNKS)
    return tl.max(tl.load(maxima + row * chunks + lane, mask=lane < chunks, other=float("-inf")))


@triton.jit
def bucket_of(distance, own_range, BUCKETS: tl.constexpr):
    """The bucket of tokens at a distance ≤ 0 from the largest: 0 above the range, the last one below it.

    own_range: the upper end of the buckets' range, a distance, and the range's width
    """
    begin, width = tl.load(own_range), tl.load(own_range + 1)
    past = begin - distance
    scale = tl.div_rn(BUCKETS - 2.0, tl.maximum(width, 1e-6))
    place = tl.minimum(tl.maximum(past * scale + 1.0, 0.0), BUCKETS - 2.0).to(tl.int32)
    return tl.where(past < width, place, BUCKETS - 1)


@triton.jit
def _first_key_of(bucket, own_range, largest, inverse, BUCKETS: tl.constexpr):
    """The smallest key of a token in `bucket` or in a bucket with a smaller number, thus with larger tokens.

    Each turn tries BUCKETS keys at once.
    """
    last = order_key(largest).to(tl.int64)
    low = tl.full((), KEY_OF_MINUS_INFINITY + 1, tl.int64)
    beyond = last + 1 - low
    while beyond > 0:  # the key is in low … low + beyond
        step = (beyond + BUCKETS - 1) // BUCKETS
        key = low + step * tl.arange(0, BUCKETS)
        distance = (value_of_key(tl.minimum(key, last).to(tl.int32)) - largest) * inverse
        below = (key <= last) & (bucket_of(distance, own_range, BUCKETS) > bucket)
        number = tl.sum(below.to(tl.int32))
        low = tl.where(number > 0, low + step * (number - 1) + 1, low)
        beyond = tl.where(number > 0, step - 1, 0)
    return low.to(tl.int32)


@triton.jit
def target_of(total, p):
    return tl.maximum((p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def _min_p_key(largest, inverse, lowest):
    """The smallest key whose distance from the largest is at least `lowest`."""
    low, high = tl.full((), KEY_OF_MINUS_INFINITY + 1, tl.int64), order_key(largest).to(tl.int64)
    while low < high:
        middle = (low + high) >> 1
        if (value_of_key(middle.to(tl.int32)) - largest) * inverse >= lowest:
            high = middle
        else:
            low = middle + 1
    return low.to(tl.int32)


@triton.jit
def _kth_key(keys, n, k, SIZE: tl.constexpr):
    """The k-th largest of n ≤ SIZE keys; the key of the lowest finite float if k > n."""
    lane = tl.arange(0, SIZE)
    key = tl.load(keys + lane, mask=lane < n, other=KEY_OF_MINUS_INFINITY)
    low, high = tl.full((), KEY_OF_MINUS_INFINITY + 1, tl.int64), tl.max(key).to(tl.int64)
    if k <= n:
        lowest = tl.min(tl.where(lane < n, key, 0x7FFFFFFF)).to(tl.int64)
        low = tl.maximum(low, lowest)
    while low < high:
        middle = (low + high + 1) >> 1
        if tl.sum((key >= middle.to(tl.int32)).to(tl.int32)) >= k:
            low = middle
        else:
            high = middle - 1
    return low.to(tl.int32)
