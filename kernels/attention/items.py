"""Attention key by key over runs of cached tokens: items with few queries, and all items where the processor
or the model has no tiles.

Each thread takes one (item, KV head) pair at a time (see `plan`). Partial results of items whose keys were
split are merged. The softmax is computed
online, a block of keys at a time (Milakov & Gimelshein 2018).
"""

import numpy as np
import torch

from ..common.jit import compiled_fast
from ..common.lanes import load_lanes, max_lane, max_of_lanes, scale_lanes, store_lanes, store_scaled, tanh
from ..common.numba_tools import (
    CELL_KIND,
    KIND,
    exp,
    fetch_add,
    fma,
    load,
    pointer,
    shift,
    store,
    unpack_float,
)
from ..common.threads import ParallelKernel
from ..common.vectors import LANES
from ..pages.cells_cpu import read_scale
from .dots import KEYS as KEYS_AT_ONCE
from .dots import WIDTH, dot_four, queries_at, set_query
from .plan import BEGIN, COLUMNS, END, PARTIAL, POSITION, STRIDE, TOKEN, TOKENS, first_key
from .runs import RUN_BEGIN, RUN_CELL, RUN_COLUMNS, RUN_LENGTH, find_run, prefetch_cells, prefetch_distance

BLOCK = 64
"""Keys of each turn of the online softmax; their K, and then their V, fit into the first-level cache."""

SCORES = BLOCK + KEYS_AT_ONCE
"""Scores of a query, with a margin for those that are computed beside the last one."""

(
    NEXT,
    ITEMS,
    ITEM_COUNT,
    ITEM_RUNS,
    RUNS,
    Q,
    Q_STRIDE,
    KEYS,
    VALUES,
    OUT,
    PARTIAL_OUT,
    PARTIAL_SUM,
    KV_HEADS,
    REPEAT,
    HEAD_DIM,
    CELL,
    HEAD_CELLS,
    MAX_QUERIES,
    REACH,
    SCALE,
    MERGES,
    MERGE_COUNT,
    MIN_TILED,
    BY_AMX,
    THREADS,
    SOFTCAP,
    SINKS,
    ARGUMENTS,
) = range(28)
"""Arguments of the kernels: addresses, counts and element strides. CELL: elements of a cell (see
`pages.cells`). HEAD_CELLS: cells from one KV head to the next one. MIN_TILED: query heads from which an
item is computed in tiles, if the processor supports them; 0 if results must not depend on the batch, so that
all items are computed in tiles and in the same way. BY_AMX: whether AMX multiplies the tiles. THREADS:
how many threads probably run items. From it a thread guesses which item it will take next. REACH: see
`Reach.code`. SOFTCAP: 0: none. SINKS: address of float32 [heads]; 0: none."""


@compiled_fast
def _scores(keys, count, later, position, source, head_dim, cell, pairs, query, scale, score):
    """score[j * SCORES + t] = scale · query j · key t, for 2 * pairs queries and `count` keys from `position`
    on.

    May also write up to three scores after those. Prefetches keys, unless head_dim is no multiple of WIDTH.
    later: the run of the last key that was prefetched, or an earlier one. Returns the new one.
    """
    ahead = prefetch_distance(keys)
    for pair in range(pairs):
        a = shift(query, 2 * pair * head_dim)
        b = shift(a, head_dim)
        to = shift(score, 2 * pair * SCORES)
        if head_dim % WIDTH != 0:
            _scores_one_by_one(keys, count, head_dim, cell, a, b, scale, to)
            continue
        for t in range(0, count, KEYS_AT_ONCE):
            key = shift(keys, t * cell)
            if pair == 0:
                some = min(KEYS_AT_ONCE, count - t)
                later = prefetch_cells(later, position + t + ahead, some, source)
            to_a, to_b = shift(to, t), shift(to, SCORES + t)
            dot_four(key, cell, count - 1 - t, head_dim, a, b, scale, to_a, to_b)
    return later


@compiled_fast
def _scores_one_by_one(keys, count, head_dim, cell, a, b, scale, to):
    """The scores of two queries, for any head_dim."""
    for t in range(count):
        key = shift(keys, t * cell)
        sum_a = np.float32(0)
        sum_b = np.float32(0)
        for d in range(head_dim):
            k = load(key, d)
            sum_a += load(a, d) * k
            sum_b += load(b, d) * k
        factor = scale * read_scale(key, head_dim)
        to[t] = sum_a * factor
        to[SCORES + t] = sum_b * factor


@compiled_fast
def _accumulate(values, count, later, position, source, head_dim, cell, pairs, weight, total):
    """total[j] += sum over t of weight[j * SCORES + t] * value t, for `count` values from `position` on.

    Any number of values is added one after another by fused multiply-adds, so values of weight 0 (of keys
    that a query does not see) change nothing. Prefetches values as `_scores` does keys.
    """
    ahead = prefetch_distance(values)
    fours = count // 4 * 4
    for pair in range(pairs):
        a = shift(total, 2 * pair * head_dim)
        b = shift(a, head_dim)
        w = shift(weight, 2 * pair * SCORES)
        u = shift(w, SCORES)
        for t in range(0, fours, 4):
            v = shift(values, t * cell)
            s0, s1 = read_scale(v, head_dim), read_scale(shift(v, cell), head_dim)
            s2, s3 = read_scale(shift(v, 2 * cell), head_dim), read_scale(shift(v, 3 * cell), head_dim)
            w0, w1, w2, w3 = w[t] * s0, w[t + 1] * s1, w[t + 2] * s2, w[t + 3] * s3
            u0, u1, u2, u3 = u[t] * s0, u[t + 1] * s1, u[t + 2] * s2, u[t + 3] * s3
            if pair == 0:
                later = prefetch_cells(later, position + t + ahead, 4, source)
            for d in range(head_dim):
                v0 = load(v, d)
                v1 = load(v, cell + d)
                v2 = load(v, 2 * cell + d)
                v3 = load(v, 3 * cell + d)
                a[d] = fma(w3, v3, fma(w2, v2, fma(w1, v1, fma(w0, v0, a[d]))))
                b[d] = fma(u3, v3, fma(u2, v2, fma(u1, v1, fma(u0, v0, b[d]))))
        for t in range(fours, count):
            v = shift(values, t * cell)
            scale = read_scale(v, head_dim)
            w0 = w[t] * scale
            u0 = u[t] * scale
            for d in range(head_dim):
                v0 = load(v, d)
                a[d] = fma(w0, v0, a[d])
                b[d] = fma(u0, v0, b[d])
    return prefetch_cells(later, position + fours + ahead, count - fours, source)


@compiled_fast
def _largest(score, low, high, largest):
    """The largest of scores [low, high) and `largest`. NaN scores may be ignored."""
    if high - low == BLOCK:
        top = load_lanes(score, 0)
        for t in range(LANES, BLOCK, LANES):
            top = max_of_lanes(load_lanes(score, t), top)
        return max(largest, max_lane(top))
    for t in range(low, high):
        largest = max(largest, score[t])
    return largest


@compiled_fast
def cap_scores(score, count, inner, outer):
    """score = outer * tanh(inner * score), for `count` scores and up to LANES - 1 after them."""
    for t in range(0, count, LANES):
        store_lanes(score, t, scale_lanes(tanh(scale_lanes(load_lanes(score, t), inner)), outer))


@compiled_fast
def _softmax(score, low, high, count, state, total, head_dim):
    """Turn scores [low, high) of a block of `count` into weights, the others into 0.

    Updates state (the largest score and the sum of weights so far) and the total.
    """
    if low >= high:
        for t in range(count):
            score[t] = np.float32(0)
        return
    largest = _largest(score, low, high, state[0])
    correction = exp(state[0] - largest)
    summed = np.float32(0)
    for t in range(low, high):
        below = score[t] - largest
        weight = exp(below) if below <= np.float32(0) else below
        score[t] = weight
        summed += weight
    for t in range(low):
        score[t] = np.float32(0)
    for t in range(high, count):
        score[t] = np.float32(0)
    if correction != np.float32(1):
        for d in range(head_dim):
            total[d] *= correction
    state[0] = largest
    state[1] = state[1] * correction + summed


@compiled_fast
def _attend(arguments, item, run, head_keys, head_values, next_keys, next_values, query, score, state, total):
    """Computes the attention of the query heads of one KV head to the keys of one work item.

    next_keys, next_values: the first cells of the item that the thread probably takes next. They are
    prefetched at the end of this item.
    """
    head_dim, cell = arguments[HEAD_DIM], arguments[CELL]
    repeat, reach = arguments[REPEAT], arguments[REACH]
    queries = item[TOKENS] * repeat
    pairs = (queries + 1) // 2
    scale, softcap = unpack_float(arguments[SCALE]), unpack_float(arguments[SOFTCAP])
    later_keys, later_values = run, run
    key_source = item[END], head_keys, next_keys, cell
    value_source = item[END], head_values, next_values, cell
    short = prefetch_distance(head_keys) - (item[END] - item[BEGIN])
    if short > 0:  # the loops below prefetch only those cells of the next item that follow the first `short`
        prefetch_cells(run, item[END], short, key_source)
        prefetch_cells(run, item[END], short, value_source)
    for begin in range(item[BEGIN], item[END], BLOCK):
        end = min(begin + BLOCK, item[END])
        run = find_run(run, begin)
        first_run = run
        at = begin
        while at < end:
            stop = min(end, run[RUN_BEGIN] + run[RUN_LENGTH])
            keys = shift(head_keys, (run[RUN_CELL] + at - run[RUN_BEGIN]) * cell)
            to = shift(score, at - begin)
            later_keys = _scores(
                keys, stop - at, later_keys, at, key_source, head_dim, cell, pairs, query, scale, to
            )
            at = stop
            if at < end:
                run = shift(run, RUN_COLUMNS)
        for j in range(queries):
            last = item[POSITION] + j // repeat
            high = min(end, last + 1) - begin
            low = max(begin, first_key(last, reach)) - begin
            to = shift(total, j * head_dim)
            if softcap != np.float32(0):
                cap_scores(shift(score, j * SCORES), end - begin, np.float32(1) / softcap, softcap)
            _softmax(shift(score, j * SCORES), low, high, end - begin, shift(state, 2 * j), to, head_dim)
        run = first_run
        at = begin
        while at < end:
            stop = min(end, run[RUN_BEGIN] + run[RUN_LENGTH])
            values = shift(head_values, (run[RUN_CELL] + at - run[RUN_BEGIN]) * cell)
            weight = shift(score, at - begin)
            later_values = _accumulate(
                values, stop - at, later_values, at, value_source, head_dim, cell, pairs, weight, total
            )
            at = stop
            if at < end:
                run = shift(run, RUN_COLUMNS)


@compiled_fast
def _load_queries(arguments, item, head, kind, query, state, total):
    """Queries of an item and KV head, and an empty state."""
    head_dim, repeat = arguments[HEAD_DIM], arguments[REPEAT]
    queries = item[TOKENS] * repeat
    for j in range(queries):
        token = item[TOKEN] + j // repeat
        source = pointer(arguments[Q], kind)
        source = shift(source, token * arguments[Q_STRIDE] + (head * repeat + j % repeat) * head_dim)
        for d in range(head_dim):
            set_query(query, j * head_dim + d, source, d)
    for j in range(queries):
        state[2 * j] = np.float32(-3e38)
        state[2 * j + 1] = np.float32(0)
    for d in range((queries + 1) // 2 * 2 * head_dim):
        total[d] = np.float32(0)


@compiled_fast
def share_of_keys(arguments, head, logsum):
    """The part of the softmax that is not the sink's. logsum: the logarithm of the keys' sum"""
    if arguments[SINKS] == 0:
        return np.float32(1)
    above = pointer(arguments[SINKS], np.float32(0))[head] - logsum
    tail = exp(-abs(above))
    return (tail if above > np.float32(0) else np.float32(1)) / (np.float32(1) + tail)


@compiled_fast
def write(arguments, item, head, kind, state, total):
    """Write an item's output, or its partial result."""
    head_dim, repeat = arguments[HEAD_DIM], arguments[REPEAT]
    heads = arguments[KV_HEADS] * repeat
    for j in range(item[TOKENS] * repeat):
        result = shift(total, j * head_dim)
        summed = state[2 * j + 1]
        inverse = np.float32(1) / summed if summed > np.float32(0) else np.float32(0)
        logsum = state[2 * j] + np.log(summed) if summed > np.float32(0) else np.float32(-np.inf)
        column = head * repeat + j % repeat
        if item[PARTIAL] < 0:
            inverse *= share_of_keys(arguments, column, logsum)
            row = (item[TOKEN] + j // repeat) * heads + column
            store_scaled(result, inverse, shift(pointer(arguments[OUT], kind), row * head_dim), head_dim)
        else:
            row = (item[PARTIAL] + j // repeat * item[STRIDE]) * heads + column
            partial = pointer(arguments[PARTIAL_OUT], np.float32(0))
            store_scaled(result, inverse, shift(partial, row * head_dim), head_dim)
            pointer(arguments[PARTIAL_SUM], np.float32(0))[row] = logsum


@compiled_fast
def column_scratch(arguments):
    """Arrays for `run_item`: the queries in bfloat16 or float32, the totals, the scores, and for each query
    its largest score and its sum of weights."""
    queries, head_dim = arguments[MAX_QUERIES] + 1, arguments[HEAD_DIM]
    query = np.zeros(queries * head_dim, np.float32)
    total = np.empty(queries * head_dim, np.float32)
    return query, total, np.empty(queries * SCORES, np.float32), np.empty(queries * 2, np.float32)


@compiled_fast
def run_of_item(arguments, index):
    """The run of an item's first key."""
    run = pointer(arguments[ITEM_RUNS], np.int64(0))[index]
    return shift(pointer(arguments[RUNS], np.int64(0)), run * RUN_COLUMNS)


@compiled_fast
def run_item(arguments, index, head, next_index, next_head, kind, stored, scratch):
    """Item number `index` for the queries of one KV head. kind: of queries and outputs, stored: of cells.

    next_index, next_head: the item and the KV head that the thread probably takes next
    """
    cell, head_cells = arguments[CELL], arguments[HEAD_CELLS]
    query = queries_at(scratch[0].ctypes.data, kind, stored)
    total = pointer(scratch[1].ctypes.data, np.float32(0))
    score = pointer(scratch[2].ctypes.data, np.float32(0))
    state = pointer(scratch[3].ctypes.data, np.float32(0))
    item = shift(pointer(arguments[ITEMS], np.int64(0)), index * COLUMNS)
    _load_queries(arguments, item, head, kind, query, state, total)
    keys, values = pointer(arguments[KEYS], stored), pointer(arguments[VALUES], stored)
    first = head * head_cells * cell
    next_run = run_of_item(arguments, next_index)
    next_begin = pointer(arguments[ITEMS], np.int64(0))[next_index * COLUMNS + BEGIN]
    next_cell = (next_head * head_cells + next_run[RUN_CELL] + next_begin - next_run[RUN_BEGIN]) * cell
    _attend(
        arguments,
        item,
        run_of_item(arguments, index),
        shift(keys, first),
        shift(values, first),
        shift(keys, next_cell),
        shift(values, next_cell),
        query,
        score,
        state,
        total,
    )
    write(arguments, item, head, kind, state, total)


@compiled_fast
def _run_items(arguments, kind, stored):
    scratch = column_scratch(arguments)
    kv_heads = arguments[KV_HEADS]
    all_work = arguments[ITEM_COUNT] * kv_heads
    while True:
        work = fetch_add(arguments, 1)
        if work >= all_work:
            break
        next_work = min(work + arguments[THREADS], all_work - 1)
        index, head = work // kv_heads, work % kv_heads
        run_item(arguments, index, head, next_work // kv_heads, next_work % kv_heads, kind, stored, scratch)


KERNELS = {
    (dtype, stored): ParallelKernel(_run_items, kind, CELL_KIND[stored])
    for dtype, kind in KIND.items()
    for stored in (dtype, torch.int8)
}
"""by dtype of the queries and of the cache"""


@compiled_fast
def _merge_partials(arguments, kind):
    """Combine the partial results of each query token, weighted by their sums of exponentials.

    They are added one after another, so that partial results of keys that the token does not see change
    nothing.
    """
    head_dim = arguments[HEAD_DIM]
    heads = arguments[KV_HEADS] * arguments[REPEAT]
    sums = pointer(arguments[PARTIAL_SUM], np.float32(0))
    scratch = np.empty(head_dim, np.float32)
    total = pointer(scratch.ctypes.data, np.float32(0))
    while True:
        work = fetch_add(arguments, 1)
        if work >= arguments[MERGE_COUNT] * heads:
            break
        head = work % heads
        merge = shift(pointer(arguments[MERGES], np.int64(0)), work // heads * 3)
        first, count = merge[1], merge[2]
        largest = np.float32(-np.inf)
        for part in range(count):
            largest = max(largest, sums[(first + part) * heads + head])
        scratch[:] = np.float32(0)
        summed = np.float32(0)
        for part in range(count):
            weight = exp(sums[(first + part) * heads + head] - largest)
            summed = fma(weight, np.float32(1), summed)
            row = (first + part) * heads + head
            partial = shift(pointer(arguments[PARTIAL_OUT], np.float32(0)), row * head_dim)
            for d in range(head_dim):
                total[d] = fma(weight, partial[d], total[d])
        inverse = share_of_keys(arguments, head, largest + np.log(summed)) / summed
        out = shift(pointer(arguments[OUT], kind), (merge[0] * heads + head) * head_dim)
        for d in range(head_dim):
            store(out, d, total[d] * inverse)


MERGE_KERNELS = {dtype: ParallelKernel(_merge_partials, kind) for dtype, kind in KIND.items()}
"""by dtype of the results"""
