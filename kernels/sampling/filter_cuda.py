# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""min-p, top-k and top-p on CUDA: one program for each row finds where the row is cut.

Bounds narrow the row to candidates, which are compacted into a list; the cut is found by bisection of the
order keys of the list.
"""

import triton
import triton.language as tl

from .math_cuda import KEY_OF_MINUS_INFINITY, log, mass, order_key, value_of_key

GREEDY_BELOW = tl.constexpr(1e-5)
FIRST_REACH = tl.constexpr(4.0)
FULL_REACH = tl.constexpr(28.0)
"""farther from the largest, in units of the temperature, values have no mass"""
UNBOUNDED = tl.constexpr(float("inf"))


@triton.jit
def filter_kernel(
    x,
    row_stride,
    vocab,
    temperature,
    top_k,
    top_p,
    min_p,
    maxima,
    chunks,
    sub_maxima,
    sub_blocks,
    candidates,
    cuts,
    CHUNKS: tl.constexpr,
    SUB_BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Row r keeps the tokens above key cuts[r, 0], and those at it up to id cuts[r, 1].

    x: float32 [rows, vocab], processed; top_k, top_p, min_p: None where no row uses them; maxima: float32
    [rows, chunks]; sub_maxima: int32 [rows, sub_blocks], keys; candidates: int32 [rows, 2, vocab], scratch.
    """
    row = tl.program_id(0)
    lane = tl.arange(0, CHUNKS)
    largest = tl.max(tl.load(maxima + row * chunks + lane, mask=lane < chunks, other=float("-inf")))
    warmth = tl.load(temperature + row)
    k, p, m = tl.full((), 0, tl.int32), tl.full((), 1.0, tl.float32), tl.full((), 0.0, tl.float32)
    if top_k is not None:
        k = tl.load(top_k + row)
    if top_p is not None:
        p = tl.load(top_p + row)
    if min_p is not None:
        m = tl.load(min_p + row)
    cut, last_tie = tl.full((), KEY_OF_MINUS_INFINITY + 1, tl.int32), tl.full((), 0, tl.int32) + vocab
    if ((k > 0) | (p < 1) | (m > 0)) & (warmth >= GREEDY_BELOW) & (tl.abs(largest) < UNBOUNDED):
        floor = tl.full((), KEY_OF_MINUS_INFINITY + 1, tl.int32)
        if top_k is not None:  # noqa: SIM102 (decided at compile time)
            if k > 0:
                floor = _kth_key(sub_maxima + row * sub_blocks, sub_blocks, k, SUB_BLOCKS)
        cut, last_tie = _cut(
            x + row.to(tl.int64) * row_stride,
            vocab,
            largest,
            tl.div_rn(1.0, warmth),
            k,
            p,
            m,
            floor,
            candidates + row.to(tl.int64) * 2 * vocab,
            TILE,
        )
    tl.store(cuts + 2 * row, cut)
    tl.store(cuts + 2 * row + 1, last_tie)


@triton.jit
def _cut(x, vocab, largest, inverse, k, p, m, floor, ids, TILE: tl.constexpr):
    keys = ids + vocab
    nucleus = (k <= 0) & (m <= 0)
    reach = tl.full((), UNBOUNDED, tl.float32)
    if m > 0:
        reach = -log(m)
    if nucleus:
        reach = tl.full((), FIRST_REACH, tl.float32)
    n, total, near, lowest = _gather(x, vocab, floor, reach, largest, inverse, ids, keys, TILE)
    while nucleus & (reach < FULL_REACH) & (near < _target(total, p)):
        reach = reach * 2
        n, total, near, lowest = _gather(x, vocab, floor, reach, largest, inverse, ids, keys, TILE)
    if not nucleus:
        total = near
    cut, last_tie = lowest, tl.full((), 0, tl.int32) + vocab
    high = order_key(largest)
    if (k > 0) & (k < n):
        cut = _cut_at(keys, n, k.to(tl.int64), lowest, high, largest, inverse, False, TILE)
        ties = k - _weight_from(keys, n, cut + 1, largest, inverse, False, TILE)
        last_tie = _nth_tie(ids, keys, n, cut, ties, TILE)
        total = _weight_from(keys, n, cut + 1, largest, inverse, True, TILE)
        total += ties * mass((value_of_key(cut) - largest) * inverse)
    if p < 1:
        target = _target(total, p)
        lower = cut
        cut = _cut_at(keys, n, target, lower, high, largest, inverse, True, TILE)
        each = mass((value_of_key(cut) - largest) * inverse)
        missing = target - _weight_from(keys, n, cut + 1, largest, inverse, True, TILE)
        last_tie = _nth_tie(ids, keys, n, cut, (missing + each - 1) // each, TILE)
    return cut, last_tie


@triton.jit
def _gather(x, vocab, floor, reach, largest, inverse, ids, keys, TILE: tl.constexpr):
    """List the candidates with key ≥ floor within reach of the largest, in order of rising id.

    Returns their number, the mass of all tokens, that of the candidates, and the lowest candidate's key.
    """
    n, lowest = tl.full((), 0, tl.int32), order_key(largest)
    total, near = tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
    for start in range(0, vocab, TILE):
        token = start + tl.arange(0, TILE)
        value = tl.load(x + token, mask=token < vocab, other=float("-inf"))
        distance, key = (value - largest) * inverse, order_key(value)
        found = (key >= floor) & (distance >= -reach) & (key > KEY_OF_MINUS_INFINITY)
        weight = mass(distance)
        total += tl.sum(weight)
        near += tl.sum(tl.where(found, weight, 0))
        lowest = tl.minimum(lowest, tl.min(tl.where(found, key, lowest)))
        place = n + tl.cumsum(found.to(tl.int32)) - 1
        tl.store(ids + place, token, mask=found)
        tl.store(keys + place, key, mask=found)
        n += tl.sum(found.to(tl.int32))
    tl.debug_barrier()  # the list is read by other threads than those that wrote it
    return n, total, near, lowest


@triton.jit
def _target(total, p):
    return tl.maximum((p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def _cut_at(keys, n, target, low, high, largest, inverse, by_mass: tl.constexpr, TILE: tl.constexpr):
    """The largest cut in low … high such that candidates from it upwards weigh at least target (low's do)."""
    low, high = low.to(tl.int64), high.to(tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        if _weight_from(keys, n, middle.to(tl.int32), largest, inverse, by_mass, TILE) >= target:
            low = middle
        else:
            high = middle - 1
    return low.to(tl.int32)


@triton.jit
def _weight_from(keys, n, floor, largest, inverse, by_mass: tl.constexpr, TILE: tl.constexpr):
    """Mass, or number, of the candidates with key ≥ floor."""
    weight = tl.full((), 0, tl.int64)
    for start in range(0, n, TILE):
        lane = start + tl.arange(0, TILE)
        key = tl.load(keys + lane, mask=lane < n, other=KEY_OF_MINUS_INFINITY)
        found = (key >= floor) & (lane < n)
        if by_mass:
            weight += tl.sum(tl.where(found, mass((value_of_key(key) - largest) * inverse), 0))
        else:
            weight += tl.sum(found.to(tl.int64))
    return weight


@triton.jit
def _nth_tie(ids, keys, n, cut, number, TILE: tl.constexpr):
    """Id of the number-th candidate whose key is cut; of the last where there are fewer."""
    before, last = tl.full((), 0, tl.int32), tl.full((), -1, tl.int32)
    for start in range(0, n, TILE):
        lane = start + tl.arange(0, TILE)
        tied = (tl.load(keys + lane, mask=lane < n, other=KEY_OF_MINUS_INFINITY) == cut) & (lane < n)
        rank = before + tl.cumsum(tied.to(tl.int32))
        token = tl.load(ids + lane, mask=lane < n, other=-1)
        last = tl.maximum(last, tl.max(tl.where(tied & (rank <= number), token, -1)))
        before += tl.sum(tied.to(tl.int32))
    return last


@triton.jit
def _kth_key(keys, n, k, SIZE: tl.constexpr):
    """The largest key that at least k of n ≤ SIZE keys reach; the lowest finite one if k > n."""
    lane = tl.arange(0, SIZE)
    key = tl.load(keys + lane, mask=lane < n, other=KEY_OF_MINUS_INFINITY)
    low, high = tl.full((), KEY_OF_MINUS_INFINITY + 1, tl.int64), tl.max(key).to(tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        if tl.sum((key >= middle.to(tl.int32)).to(tl.int32)) >= k:
            low = middle
        else:
            high = middle - 1
    return low.to(tl.int32)
