"""The range of distances that the buckets of a row's histogram cover for top-p, on CUDA.

In a flat row many tokens have a similar probability, so that most would be added to buckets one by one. A
sample of the row's tokens tells roughly where the cut is: tokens above and below that range are added in
registers. The range decides how long the list of the cut's bucket becomes, never which tokens are kept.
"""

import triton
import triton.language as tl

from .math_cuda import order_key, value_of_key
from .process_cuda import SUB_BLOCK, load_processed

NEAR = tl.constexpr(10.0)
"""Buckets of a row that is not flat cover this distance below the largest, in units of the temperature."""
FLAT = tl.constexpr(64)
"""A row is flat if at least this many sampled tokens are nearer than `NEAR` to the largest."""
DEEPEST = tl.constexpr(30.0)
"""Tokens farther from the largest weigh as if they were at this distance."""
DEVIATIONS = tl.constexpr(4.0)
"""standard deviations of the sample's estimate that the range covers on both sides"""
HALVINGS = tl.constexpr(12)


@triton.jit
def range_of_cut(
    x,
    row,
    row_stride,
    vocab,
    mask_index,
    mask_bits,
    sub_maxima,
    sub_blocks,
    largest,
    inverse,
    floor,
    p,
    SUB_BLOCKS: tl.constexpr,
    SAMPLES: tl.constexpr,
):
    """The range's upper end, a distance ≤ 0 from the largest token, and its width.

    The largest token of each sub-block counts as itself; sampled tokens stand for all others.
    """
    lane = tl.arange(0, SUB_BLOCKS)
    peak = tl.load(sub_maxima + lane, mask=lane < sub_blocks, other=-0x7F800001)
    high, high_weight = _weigh(peak, peak >= floor, largest, inverse)
    token = (tl.arange(0, SAMPLES).to(tl.int64) * vocab // SAMPLES).to(tl.int32)
    key = order_key(load_processed(x, row, row_stride, token, vocab, mask_index, mask_bits))
    counts = (key >= floor) & (key != tl.load(sub_maxima + token // SUB_BLOCK))
    low, low_weight = _weigh(key, counts, largest, inverse)
    begin, width = tl.full((), 0.0, tl.float32), tl.full((), NEAR, tl.float32)
    if tl.sum((counts & (low > -NEAR)).to(tl.int32)) >= FLAT:
        low_weight *= (vocab - sub_blocks).to(tl.float32) / SAMPLES
        target = p * (tl.sum(low_weight) + tl.sum(high_weight))
        cut, _ = _reaching(target, low, low_weight, high, high_weight)
        # What a token adds to the mass above the cut, minus p times what it adds to the row's mass.
        share = low_weight * tl.where(low >= cut, 1.0 - p, p)
        error = DEVIATIONS * tl.sqrt(tl.sum(share * share))
        _, begin = _reaching(target - error, low, low_weight, high, high_weight)
        end, _ = _reaching(target + error, low, low_weight, high, high_weight)
        width = begin - end
    return begin, width


@triton.jit
def _weigh(key, counts, largest, inverse):
    """The distances of keys from the largest, and approximate weights; 0 for keys that do not count."""
    distance = (value_of_key(key) - largest) * inverse
    return distance, tl.where(counts, tl.exp(tl.maximum(distance, -DEEPEST)), 0.0)


@triton.jit
def _reaching(target, low, low_weight, high, high_weight):
    """Two neighbouring distances: tokens up to the first weigh at least target, those up to the
    second one do not."""
    reaches, misses = tl.full((), -DEEPEST, tl.float32), tl.full((), 0.0, tl.float32)
    for _ in range(HALVINGS):
        middle = (reaches + misses) * 0.5
        weight = tl.sum(tl.where(low >= middle, low_weight, 0.0))
        weight += tl.sum(tl.where(high >= middle, high_weight, 0.0))
        if weight >= target:
            reaches = middle
        else:
            misses = middle
    return reaches, misses
