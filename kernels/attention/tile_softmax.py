"""The online softmax of a block of scores whose lanes belong to different queries (see `tiles`)."""

import numpy as np

from ..common.bfloat16_dots import round_pairs
from ..common.emits import ANY, FLOAT, INT, VOID, emits
from ..common.jit import compiled_fast
from ..common.lanes import (
    add_lanes,
    exp_of_difference,
    fill_halves,
    fill_lanes,
    load_lanes,
    max_of_lanes,
    multiply_lanes,
    scale_lanes,
    store_halves_as_pairs,
    store_lanes,
    swap_halves,
)
from ..common.lanes import lanes as VECTOR
from ..common.llvm import size, write
from ..common.vectors import LANES
from .plan import first_blind


@compiled_fast
def scale_scores(score, count, lanes, scales):
    """score[t, lane] *= scales[t]"""
    for t in range(count):
        for lane in range(0, lanes, LANES):
            at = t * lanes + lane
            store_lanes(score, at, scale_lanes(load_lanes(score, at), scales[t]))


@compiled_fast
def scale_few_scores(score, count, scales):
    """As `scale_scores`, for at most LANES // 2 queries (see `softmax_of_few`)."""
    for t in range(0, count, 2):
        at = t * LANES // 2
        store_lanes(score, at, multiply_lanes(load_lanes(score, at), fill_halves(scales[t], scales[t + 1])))


@compiled_fast
def hide(score, begin, count, padded, position, reach, tokens, repeat, lanes):
    """Set the scores of keys that a query does not see to -inf.

    The scores are of `padded` keys from position `begin` on, of which `count` exist; the first of the item's
    query tokens is at `position`. reach: see `Reach.code`
    """
    queries = tokens * repeat
    for t in range(count, padded):
        for lane in range(lanes):
            score[t * lanes + lane] = np.float32(-np.inf)
    if begin + count - 1 <= position and first_blind(begin, reach) >= position + tokens:
        return
    for t in range(count):
        ahead = begin + t - position  # of the first query
        for lane in range(min(ahead * repeat, queries)):
            score[t * lanes + lane] = np.float32(-np.inf)
        for lane in range(max(0, (first_blind(begin + t, reach) - position) * repeat), queries):
            score[t * lanes + lane] = np.float32(-np.inf)


@emits(VOID, ANY, INT, INT, INT, VECTOR, VECTOR)
def _store_weights(builder, weight, t, row, lane, low, high, kinds):
    """Writes 16 queries' weights for keys t and t + 1, where t is even.

    weight: float32, [t, lane] and [t + 1, lane] are written; or words, whose [t // 2, lane] gets both weights
    as a pair of bfloat16. `row` elements from one row to the next.
    """
    if kinds[0].dtype != FLOAT:
        at = builder.add(builder.mul(builder.lshr(t, size(1)), row), lane)
        write(builder, round_pairs(builder, low, high), builder.gep(weight, [at]))
        return
    at = builder.add(builder.mul(t, row), lane)
    write(builder, low, builder.gep(weight, [at]))
    write(builder, high, builder.gep(weight, [builder.add(at, row)]))


@compiled_fast
def softmax(score, count, queries, lanes, scale, scaled, scales, largest, summed, correction, weight):
    """Turn scores into weights, and update each query's largest score and sum.

    scales: factors of the weights, if `scaled`; the sums are of the weights without them.
    correction: the factor by which the caller must multiply the totals of earlier blocks.
    weight: see `_store_weights`; it may be `score`
    """
    for lane in range(0, queries, LANES):
        before = load_lanes(largest, lane)
        top, other = before, before
        for t in range(0, count, 2):
            top = max_of_lanes(load_lanes(score, t * lanes + lane), top)
            other = max_of_lanes(load_lanes(score, (t + 1) * lanes + lane), other)
        top = max_of_lanes(other, top)
        factor = exp_of_difference(before, top, scale)
        total = multiply_lanes(load_lanes(summed, lane), factor)
        for t in range(0, count, 2):
            low = exp_of_difference(load_lanes(score, t * lanes + lane), top, scale)
            high = exp_of_difference(load_lanes(score, (t + 1) * lanes + lane), top, scale)
            total = add_lanes(total, add_lanes(low, high))
            if scaled:
                low, high = scale_lanes(low, scales[t]), scale_lanes(high, scales[t + 1])
            _store_weights(weight, t, lanes, lane, low, high)
        store_lanes(largest, lane, top)
        store_lanes(summed, lane, total)
        store_lanes(correction, lane, factor)


@compiled_fast
def softmax_of_few(score, count, scale, scaled, scales, largest, summed, correction, weight):
    """As `softmax`, for at most LANES // 2 queries. A key's scores fill half of a vector, so each vector has
    the scores of two keys.

    largest, summed, correction: LANES numbers each, of which the second half repeats the first one
    """
    before = load_lanes(largest, 0)
    top, other = before, before
    for t in range(0, count, 4):
        at = t * LANES // 2
        top = max_of_lanes(load_lanes(score, at), top)
        other = max_of_lanes(load_lanes(score, at + LANES), other)
    top = max_of_lanes(other, top)
    top = max_of_lanes(swap_halves(top), top)
    factor = exp_of_difference(before, top, scale)
    total, more = fill_lanes(np.float32(0)), fill_lanes(np.float32(0))
    for t in range(0, count, 4):
        at = t * LANES // 2
        low = exp_of_difference(load_lanes(score, at), top, scale)
        high = exp_of_difference(load_lanes(score, at + LANES), top, scale)
        total, more = add_lanes(total, low), add_lanes(more, high)
        if scaled:
            low = multiply_lanes(low, fill_halves(scales[t], scales[t + 1]))
            high = multiply_lanes(high, fill_halves(scales[t + 2], scales[t + 3]))
        store_halves_as_pairs(weight, at // 2, low, high)
    total = add_lanes(total, more)
    store_lanes(largest, 0, top)
    store_lanes(
        summed,
        0,
        add_lanes(multiply_lanes(load_lanes(summed, 0), factor), add_lanes(total, swap_halves(total))),
    )
    store_lanes(correction, 0, factor)


@compiled_fast
def correct(queries, head_dim, correction, total):
    """total[query, d] *= correction[query]"""
    for query in range(queries):
        if correction[query] != np.float32(1):
            for d in range(head_dim):
                total[query * head_dim + d] *= correction[query]
