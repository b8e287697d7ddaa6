# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Attention over runs of cached tokens, for few queries at a time: the memory-bound part of the work on CPUs.

Each thread takes one (item, KV head) pair at a time (see `plan`). The softmax is computed
online, a block of keys at a time (Milakov & Gimelshein 2018).
"""

from functools import cache

import numpy as np
import torch

from ..common.lanes import larger, largest_of, load_lanes
from ..common.numba_tools import (
    compiled,
    exp,
    fetch_add,
    float_of,
    fma,
    load,
    pointer,
    prefetch,
    shifted,
    store,
)
from ..common.threads import Callback
from ..common.vectors import LANES
from ..pages.cells_cpu import is_scaled, line_elements, scale_of
from .dots import KEYS as KEYS_AT_ONCE
from .dots import WIDTH, dot_four
from .plan import BEGIN, COLUMNS, END, PARTIAL, POSITION, STRIDE, TOKEN, TOKENS
from .runs import RUN_BEGIN, RUN_CELL, RUN_COLUMNS, RUN_LENGTH

BLOCK = 64
"""Keys of each turn of the online softmax; their K, and then their V, fit into the first-level cache."""

SCORES = BLOCK + KEYS_AT_ONCE
"""Scores of a query, with a margin for those that are computed beside the last one."""

AHEAD = 24
"""Keys to prefetch ahead of the current one: the fastest of 12 to 32. int8 has twice as many, which are as
many bytes."""

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
    WINDOW,
    SCALE,
    MERGES,
    MERGE_COUNT,
    FEWEST_TILED,
    BY_AMX,
    ARGUMENTS,
) = range(25)
"""Arguments of the callbacks: addresses, counts and element strides. CELL: elements of a cell (see
`pages.cells`). HEAD_CELLS: cells from one KV head to the next one. FEWEST_TILED: query heads from which an
item is computed in tiles, if the processor supports them. BY_AMX: whether AMX multiplies the tiles."""


@compiled
def _ahead(cells):
    return 2 * AHEAD if is_scaled(cells) else AHEAD


@compiled
def _scores(keys, count, available, head_dim, cell, pairs, query, score):
    """score[j * SCORES + t] = query j · key t, for 2 * pairs queries and `count` of the `available` keys.

    May also write up to three scores after those.
    """
    ahead = _ahead(keys)
    for pair in range(pairs):
        a = shifted(query, 2 * pair * head_dim)
        b = shifted(a, head_dim)
        to = shifted(score, 2 * pair * SCORES)
        if head_dim % WIDTH != 0:
            _scores_one_by_one(keys, count, head_dim, cell, a, b, to)
            continue
        for t in range(0, count, KEYS_AT_ONCE):
            key = shifted(keys, t * cell)
            if pair == 0 and t + ahead < available:
                for d in range(0, KEYS_AT_ONCE * cell, line_elements(key)):
                    prefetch(key, ahead * cell + d)
            dot_four(key, cell, count - 1 - t, head_dim, a, b, shifted(to, t), shifted(to, SCORES + t))


@compiled
def _scores_one_by_one(keys, count, head_dim, cell, a, b, to):
    """The scores of two queries, for any head_dim."""
    for t in range(count):
        key = shifted(keys, t * cell)
        sum_a = np.float32(0)
        sum_b = np.float32(0)
        for d in range(head_dim):
            k = load(key, d)
            sum_a += a[d] * k
            sum_b += b[d] * k
        scale = scale_of(key, head_dim)
        to[t] = sum_a * scale
        to[SCORES + t] = sum_b * scale


@compiled
def _accumulate(values, count, available, head_dim, cell, pairs, weight, total):
    """total[j] += sum over t of weight[j * SCORES + t] * value t, for `count` of the `available` values.

    Any number of values is added one after another by fused multiply-adds, so values of weight 0 (of keys
    that a query does not see) change nothing.
    """
    ahead = _ahead(values)
    fours = count // 4 * 4
    for pair in range(pairs):
        a = shifted(total, 2 * pair * head_dim)
        b = shifted(a, head_dim)
        w = shifted(weight, 2 * pair * SCORES)
        u = shifted(w, SCORES)
        for t in range(0, fours, 4):
            v = shifted(values, t * cell)
            s0, s1 = scale_of(v, head_dim), scale_of(shifted(v, cell), head_dim)
            s2, s3 = scale_of(shifted(v, 2 * cell), head_dim), scale_of(shifted(v, 3 * cell), head_dim)
            w0, w1, w2, w3 = w[t] * s0, w[t + 1] * s1, w[t + 2] * s2, w[t + 3] * s3
            u0, u1, u2, u3 = u[t] * s0, u[t + 1] * s1, u[t + 2] * s2, u[t + 3] * s3
            if pair == 0 and t + ahead < available:
                for d in range(0, 4 * cell, line_elements(v)):
                    prefetch(v, ahead * cell + d)
            for d in range(head_dim):
                v0 = load(v, d)
                v1 = load(v, cell + d)
                v2 = load(v, 2 * cell + d)
                v3 = load(v, 3 * cell + d)
                a[d] = fma(w3, v3, fma(w2, v2, fma(w1, v1, fma(w0, v0, a[d]))))
                b[d] = fma(u3, v3, fma(u2, v2, fma(u1, v1, fma(u0, v0, b[d]))))
        for t in range(fours, count):
            v = shifted(values, t * cell)
            scale = scale_of(v, head_dim)
            w0 = w[t] * scale
            u0 = u[t] * scale
            for d in range(head_dim):
                v0 = load(v, d)
                a[d] = fma(w0, v0, a[d])
                b[d] = fma(u0, v0, b[d])


@compiled
def _largest(score, low, high, largest):
    """The largest of scores [low, high) and `largest`. NaN scores may be ignored."""
    if high - low == BLOCK:
        top = load_lanes(score, 0)
        for t in range(LANES, BLOCK, LANES):
            top = larger(load_lanes(score, t), top)
        return max(largest, largest_of(top))
    for t in range(low, high):
        largest = max(largest, score[t])
    return largest


@compiled
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


@compiled
def _prefetch_next(run, run_end, end, item_end, head_cells, cell):
    """Prefetch the first cells of the next run if this run ends before `end`."""
    if run_end <= end and run_end < item_end:
        following = shifted(head_cells, run[RUN_COLUMNS + RUN_CELL] * cell)
        ahead = min(_ahead(following), run[RUN_COLUMNS + RUN_LENGTH])
        for d in range(0, ahead * cell, line_elements(following)):
            prefetch(following, d)


@compiled
def _attend(arguments, item, run, head_keys, head_values, query, score, state, total):
    """Run one item for the queries of one KV head."""
    head_dim, cell = arguments[HEAD_DIM], arguments[CELL]
    repeat, window = arguments[REPEAT], arguments[WINDOW]
    queries = item[TOKENS] * repeat
    pairs = (queries + 1) // 2
    for begin in range(item[BEGIN], item[END], BLOCK):
        end = min(begin + BLOCK, item[END])
        while run[RUN_BEGIN] + run[RUN_LENGTH] <= begin:
            run = shifted(run, RUN_COLUMNS)
        first_run = run
        at = begin
        while at < end:
            run_end = run[RUN_BEGIN] + run[RUN_LENGTH]
            stop = min(end, run_end)
            _prefetch_next(run, run_end, end, item[END], head_keys, cell)
            keys = shifted(head_keys, (run[RUN_CELL] + at - run[RUN_BEGIN]) * cell)
            to = shifted(score, at - begin)
            _scores(keys, stop - at, run_end - at, head_dim, cell, pairs, query, to)
            at = stop
            if at < end:
                run = shifted(run, RUN_COLUMNS)
        for j in range(queries):
            last = item[POSITION] + j // repeat
            high = min(end, last + 1) - begin
            low = max(begin, last + 1 - window) - begin
            to = shifted(total, j * head_dim)
            _softmax(shifted(score, j * SCORES), low, high, end - begin, shifted(state, 2 * j), to, head_dim)
        run = first_run
        at = begin
        while at < end:
            run_end = run[RUN_BEGIN] + run[RUN_LENGTH]
            stop = min(end, run_end)
            _prefetch_next(run, run_end, end, item[END], head_values, cell)
            values = shifted(head_values, (run[RUN_CELL] + at - run[RUN_BEGIN]) * cell)
            weight = shifted(score, at - begin)
            _accumulate(values, stop - at, run_end - at, head_dim, cell, pairs, weight, total)
            at = stop
            if at < end:
                run = shifted(run, RUN_COLUMNS)


@compiled
def _load_queries(arguments, item, head, kind, scale, query, state, total):
    """Scaled queries of an item and KV head as float32, and an empty state."""
    head_dim, repeat = arguments[HEAD_DIM], arguments[REPEAT]
    queries = item[TOKENS] * repeat
    for j in range(queries):
        token = item[TOKEN] + j // repeat
        source = pointer(arguments[Q], kind)
        source = shifted(source, token * arguments[Q_STRIDE] + (head * repeat + j % repeat) * head_dim)
        for d in range(head_dim):
            query[j * head_dim + d] = load(source, d) * scale
    for j in range(queries):
        state[2 * j] = np.float32(-3e38)
        state[2 * j + 1] = np.float32(0)
    for d in range((queries + 1) // 2 * 2 * head_dim):
        total[d] = np.float32(0)


@compiled
def write(arguments, item, head, kind, state, total):
    """Write an item's output, or its partial result."""
    head_dim, repeat = arguments[HEAD_DIM], arguments[REPEAT]
    heads = arguments[KV_HEADS] * repeat
    for j in range(item[TOKENS] * repeat):
        result = shifted(total, j * head_dim)
        summed = state[2 * j + 1]
        inverse = np.float32(1) / summed if summed > np.float32(0) else np.float32(0)
        column = head * repeat + j % repeat
        if item[PARTIAL] < 0:
            row = (item[TOKEN] + j // repeat) * heads + column
            out = shifted(pointer(arguments[OUT], kind), row * head_dim)
            for d in range(head_dim):
                store(out, d, result[d] * inverse)
        else:
            row = (item[PARTIAL] + j // repeat * item[STRIDE]) * heads + column
            partial = shifted(pointer(arguments[PARTIAL_OUT], np.float32(0)), row * head_dim)
            for d in range(head_dim):
                partial[d] = result[d] * inverse
            logsum = state[2 * j] + np.log(summed) if summed > np.float32(0) else np.float32(-np.inf)
            pointer(arguments[PARTIAL_SUM], np.float32(0))[row] = logsum


@compiled
def column_scratch(arguments):
    """Arrays for `run_item`: queries, totals, scores, states."""
    queries, head_dim = arguments[MAX_QUERIES] + 1, arguments[HEAD_DIM]
    query = np.zeros(queries * head_dim, np.float32)
    total = np.empty(queries * head_dim, np.float32)
    return query, total, np.empty(queries * SCORES, np.float32), np.empty(queries * 2, np.float32)


@compiled
def run_item(arguments, index, head, kind, stored, scratch):
    """Item number `index` for the queries of one KV head. kind: of queries and outputs, stored: of cells."""
    first = head * arguments[HEAD_CELLS] * arguments[CELL]
    query = pointer(scratch[0].ctypes.data, np.float32(0))
    total = pointer(scratch[1].ctypes.data, np.float32(0))
    score = pointer(scratch[2].ctypes.data, np.float32(0))
    state = pointer(scratch[3].ctypes.data, np.float32(0))
    item = shifted(pointer(arguments[ITEMS], np.int64(0)), index * COLUMNS)
    _load_queries(arguments, item, head, kind, float_of(arguments[SCALE]), query, state, total)
    keys = shifted(pointer(arguments[KEYS], stored), first)
    values = shifted(pointer(arguments[VALUES], stored), first)
    run = pointer(arguments[ITEM_RUNS], np.int64(0))[index]
    runs = shifted(pointer(arguments[RUNS], np.int64(0)), run * RUN_COLUMNS)
    _attend(arguments, item, runs, keys, values, query, score, state, total)
    write(arguments, item, head, kind, state, total)


@compiled
def _run_items(arguments, kind, stored):
    scratch = column_scratch(arguments)
    while True:
        work = fetch_add(arguments, 1)
        if work >= arguments[ITEM_COUNT] * arguments[KV_HEADS]:
            break
        run_item(arguments, work // arguments[KV_HEADS], work % arguments[KV_HEADS], kind, stored, scratch)


def _items_bfloat16(arguments):
    _run_items(arguments, np.uint16(0), np.uint16(0))


def _items_float16(arguments):
    _run_items(arguments, np.int16(0), np.int16(0))


def _items_float32(arguments):
    _run_items(arguments, np.float32(0), np.float32(0))


def _items_bfloat16_int8(arguments):
    _run_items(arguments, np.uint16(0), np.int8(0))


def _items_float16_int8(arguments):
    _run_items(arguments, np.int16(0), np.int8(0))


def _items_float32_int8(arguments):
    _run_items(arguments, np.float32(0), np.int8(0))


_RUN = {
    (torch.bfloat16, torch.bfloat16): _items_bfloat16,
    (torch.float16, torch.float16): _items_float16,
    (torch.float32, torch.float32): _items_float32,
    (torch.bfloat16, torch.int8): _items_bfloat16_int8,
    (torch.float16, torch.int8): _items_float16_int8,
    (torch.float32, torch.int8): _items_float32_int8,
}


@cache
def run_callback(dtype: torch.dtype, stored: torch.dtype) -> Callback:
    """The callback that runs the items, for queries of `dtype` and a cache of `stored`."""
    return Callback(_RUN[dtype, stored])
