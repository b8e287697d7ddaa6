"""The online softmax of a block of scores whose lanes belong to different queries (see `tiles`)."""

import numpy as np

from ..common.lanes import (
    exp_of_difference,
    in_halves,
    larger,
    load_lanes,
    multiplied,
    plus,
    repeated,
    store_halves_as_pairs,
    store_lanes,
    store_pairs,
    swapped_halves,
    times,
)
from ..common.numba_tools import compiled
from ..common.vectors import LANES


@compiled
def scale_scores(score, count, lanes, scales):
    """score[t, lane] *= scales[t]"""
    for t in range(count):
        for lane in range(0, lanes, LANES):
            at = t * lanes + lane
            store_lanes(score, at, multiplied(load_lanes(score, at), scales[t]))


@compiled
def scale_few_scores(score, count, scales):
    """As `scale_scores`, for at most LANES // 2 queries (see `softmax_of_few`)."""
    for t in range(0, count, 2):
        at = t * LANES // 2
        store_lanes(score, at, times(load_lanes(score, at), in_halves(scales[t], scales[t + 1])))


@compiled
def hide(score, begin, count, padded, position, window, tokens, repeat, lanes):
    """Set the scores of keys that a query does not see to -inf.

    The scores are of `padded` keys from position `begin` on, of which `count` exist; the first of the item's
    query tokens is at `position`.
    """
    queries = tokens * repeat
    for t in range(count, padded):
        for lane in range(lanes):
            score[t * lanes + lane] = np.float32(-np.inf)
    if begin + count - 1 <= position and begin - position + window >= tokens:
        return
    for t in range(count):
        ahead = begin + t - position  # of the first query
        for lane in range(min(ahead * repeat, queries)):
            score[t * lanes + lane] = np.float32(-np.inf)
        for lane in range(max(0, (ahead + window) * repeat), queries):
            score[t * lanes + lane] = np.float32(-np.inf)


@compiled
def softmax(score, count, queries, lanes, scale, scaled, scales, largest, summed, correction, weight):
    """Turn scores into weights, in pairs of keys, and update each query's largest score and sum.

    scales: factors of the weights, if `scaled`; the sums are of the weights without them.
    correction: the factor by which the caller must multiply the totals of earlier blocks.
    """
    for lane in range(0, queries, LANES):
        before = load_lanes(largest, lane)
        top, other = before, before
        for t in range(0, count, 2):
            top = larger(load_lanes(score, t * lanes + lane), top)
            other = larger(load_lanes(score, (t + 1) * lanes + lane), other)
        top = larger(other, top)
        factor = exp_of_difference(before, top, scale)
        total = times(load_lanes(summed, lane), factor)
        for t in range(0, count, 2):
            low = exp_of_difference(load_lanes(score, t * lanes + lane), top, scale)
            high = exp_of_difference(load_lanes(score, (t + 1) * lanes + lane), top, scale)
            total = plus(total, plus(low, high))
            if scaled:
                low, high = multiplied(low, scales[t]), multiplied(high, scales[t + 1])
            store_pairs(weight, t // 2 * lanes + lane, low, high)
        store_lanes(largest, lane, top)
        store_lanes(summed, lane, total)
        store_lanes(correction, lane, factor)


@compiled
def softmax_of_few(score, count, scale, scaled, scales, largest, summed, correction, weight):
    """As `softmax`, for at most LANES // 2 queries. A key's scores fill half of a vector, so each vector has
    the scores of two keys.

    largest, summed, correction: LANES numbers each, of which the second half repeats the first one
    """
    before = load_lanes(largest, 0)
    top, other = before, before
    for t in range(0, count, 4):
        at = t * LANES // 2
        top = larger(load_lanes(score, at), top)
        other = larger(load_lanes(score, at + LANES), other)
    top = larger(other, top)
    top = larger(swapped_halves(top), top)
    factor = exp_of_difference(before, top, scale)
    total, more = repeated(np.float32(0)), repeated(np.float32(0))
    for t in range(0, count, 4):
        at = t * LANES // 2
        low = exp_of_difference(load_lanes(score, at), top, scale)
        high = exp_of_difference(load_lanes(score, at + LANES), top, scale)
        total, more = plus(total, low), plus(more, high)
        if scaled:
            low = times(low, in_halves(scales[t], scales[t + 1]))
            high = times(high, in_halves(scales[t + 2], scales[t + 3]))
        store_halves_as_pairs(weight, at // 2, low, high)
    total = plus(total, more)
    store_lanes(largest, 0, top)
    store_lanes(summed, 0, plus(times(load_lanes(summed, 0), factor), plus(total, swapped_halves(total))))
    store_lanes(correction, 0, factor)


@compiled
def correct(queries, head_dim, correction, total):
    """total[query, d] *= correction[query]"""
    for query in range(queries):
        if correction[query] != np.float32(1):
            for d in range(head_dim):
                total[query * head_dim + d] *= correction[query]
