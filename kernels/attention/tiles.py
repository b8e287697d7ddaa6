# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Attention for many queries at a time on processors that multiply bfloat16 (AVX512-BF16).

Each lane of a vector holds one query: the scores of a block of keys are a small matrix product, their softmax
needs no sum across lanes, and a second product adds the weighted values. Queries and
weights are bfloat16, sums and scores float32.
"""

from functools import cache

import numpy as np

from ..common.numba_tools import compiled, fetch_add, float_of, pointer, prefetch, shifted
from ..common.threads import Callback
from . import items as column
from .items import (
    FEWEST_TILED,
    HEAD_DIM,
    ITEM_COUNT,
    ITEM_RUNS,
    ITEMS,
    KEYS,
    KV_HEADS,
    MAX_QUERIES,
    Q_STRIDE,
    REPEAT,
    RUNS,
    SCALE,
    SLOTS,
    VALUES,
    WINDOW,
    Q,
)
from .lanes import LANES, exp_of_difference, larger, load_lanes, plus, store_lanes, store_pairs, times
from .plan import BEGIN, COLUMNS, END, POSITION, TOKEN, TOKENS
from .runs import RUN_BEGIN, RUN_COLUMNS, RUN_LENGTH, RUN_SLOT
from .tile_product import ROWS, multiply_narrow, multiply_wide

QUERIES = 32
"""Query heads of an item: two vectors"""

FEW_QUERIES = 8
"""Items with fewer query heads read their keys one by one."""

LINE = 16
"""Words of a cache line"""

BLOCK = 64
"""Keys of each turn of the online softmax; with their values they fit into the first-level cache."""


@compiled
def _copy_block(run, begin, end, head_keys, head_values, half, keys, values):
    """Copy keys [begin, end) as words and interleave the values of each two consecutive keys. Returns their
    run.

    Both copies are padded with zeros to a multiple of ROWS.
    """
    while run[RUN_BEGIN] + run[RUN_LENGTH] <= begin:
        run = shifted(run, RUN_COLUMNS)
    first = run
    for t in range(-(-(end - begin) // ROWS) * ROWS):
        pair = shifted(values, t // 2 * 2 * half)
        if begin + t >= end:
            for w in range(half):
                keys[t * half + w] = np.uint32(0)
            _put_value(shifted(keys, t * half), half, t % 2, pair)
            continue
        if run[RUN_BEGIN] + run[RUN_LENGTH] <= begin + t:
            run = shifted(run, RUN_COLUMNS)
        slot = run[RUN_SLOT] + begin + t - run[RUN_BEGIN]
        key = shifted(head_keys, slot * half)
        for w in range(half):
            keys[t * half + w] = key[w]
        _put_value(shifted(head_values, slot * half), half, t % 2, pair)
    return first


@compiled
def _prefetch_block(run, begin, end, head_keys, head_values, half):
    """Prefetch keys and values [begin, end), which are copied next."""
    for t in range(begin, end):
        while run[RUN_BEGIN] + run[RUN_LENGTH] <= t:
            run = shifted(run, RUN_COLUMNS)
        place = (run[RUN_SLOT] + t - run[RUN_BEGIN]) * half
        for w in range(0, half, LINE):
            prefetch(head_keys, place + w)
            prefetch(head_values, place + w)


@compiled
def _put_value(value, half, odd, pair):
    """Write a value into the lower or upper halves of the words of its pair."""
    if odd == 0:
        for w in range(half):
            pair[2 * w] = value[w] & np.uint32(0xFFFF)
            pair[2 * w + 1] = value[w] >> np.uint32(16)
    else:
        for w in range(half):
            pair[2 * w] |= value[w] << np.uint32(16)
            pair[2 * w + 1] |= value[w] & np.uint32(0xFFFF0000)


@compiled
def _score(keys, count, query, half, lanes, score):
    """score[t, lane] = key t · query lane"""
    for t in range(0, count, ROWS):
        block = shifted(keys, t * half)
        lane = 0
        while lane + 2 * LANES <= lanes:
            to = shifted(score, t * lanes + lane)
            multiply_wide(half, block, half, 1, shifted(query, lane), lanes, to, lanes, False)
            lane += 2 * LANES
        if lane < lanes:
            to = shifted(score, t * lanes + lane)
            multiply_narrow(half, block, half, 1, shifted(query, lane), lanes, to, lanes, False)


@compiled
def _hide(score, begin, count, padded, position, window, queries, repeat, lanes):
    """Set the scores of keys that a query does not see to -inf."""
    for t in range(count, padded):
        for lane in range(lanes):
            score[t * lanes + lane] = np.float32(-np.inf)
    last = position + (queries - 1) // repeat
    for t in range(count):
        if begin + t > position or begin + t <= last - window:
            for lane in range(queries):
                seen_to = position + lane // repeat
                if begin + t > seen_to or begin + t <= seen_to - window:
                    score[t * lanes + lane] = np.float32(-np.inf)


@compiled
def _softmax(score, count, lanes, scale, largest, summed, correction, weight):
    """Turn scores into weights, in pairs of keys, and update each lane's largest score and sum.

    correction: the factor by which the caller must multiply the weights of earlier blocks.
    """
    for lane in range(0, lanes, LANES):
        before = load_lanes(largest, lane)
        top = before
        for t in range(count):
            top = larger(load_lanes(score, t * lanes + lane), top)
        factor = exp_of_difference(before, top, scale)
        total = times(load_lanes(summed, lane), factor)
        for t in range(0, count, 2):
            low = exp_of_difference(load_lanes(score, t * lanes + lane), top, scale)
            high = exp_of_difference(load_lanes(score, (t + 1) * lanes + lane), top, scale)
            total = plus(total, plus(low, high))
            store_pairs(weight, t // 2 * lanes + lane, low, high)
        store_lanes(largest, lane, top)
        store_lanes(summed, lane, total)
        store_lanes(correction, lane, factor)


@compiled
def _accumulate(weight, values, pairs, queries, head_dim, lanes, correction, total):
    """total[query, d] = total · correction + sum of weight · value"""
    for query in range(queries):
        if correction[query] != np.float32(1):
            for d in range(head_dim):
                total[query * head_dim + d] *= correction[query]
    for query in range(0, queries, ROWS):
        d = 0
        while d + 2 * LANES <= head_dim:
            to = shifted(total, query * head_dim + d)
            multiply_wide(
                pairs, shifted(weight, query), 1, lanes, shifted(values, d), head_dim, to, head_dim, True
            )
            d += 2 * LANES
        if d < head_dim:
            to = shifted(total, query * head_dim + d)
            multiply_narrow(
                pairs, shifted(weight, query), 1, lanes, shifted(values, d), head_dim, to, head_dim, True
            )


@compiled
def _load_queries(arguments, item, head, lanes, query):
    """query[w, lane]: words of an item's queries; zeros in unused lanes."""
    half, repeat = arguments[HEAD_DIM] // 2, arguments[REPEAT]
    queries = item[TOKENS] * repeat
    for i in range(half * lanes):
        query[i] = np.uint32(0)
    for lane in range(queries):
        token = item[TOKEN] + lane // repeat
        source = pointer(arguments[Q], np.uint16(0))
        place = token * arguments[Q_STRIDE] + (head * repeat + lane % repeat) * 2 * half
        for w in range(half):
            low, high = source[place + 2 * w], source[place + 2 * w + 1]
            query[w * lanes + lane] = np.uint32(low) | np.uint32(high) << np.uint32(16)


@compiled
def _clear(lanes, head_dim, largest, summed, total):
    for lane in range(lanes):
        largest[lane] = np.float32(-3e38)
        summed[lane] = np.float32(0)
    for d in range(lanes * head_dim):
        total[d] = np.float32(0)


@compiled
def _attend(arguments, item, run, head, words, floats, state, total):
    """Run one item for the queries of one KV head."""
    head_dim, repeat, window = arguments[HEAD_DIM], arguments[REPEAT], arguments[WINDOW]
    half = head_dim // 2
    queries = item[TOKENS] * repeat
    lanes = -(-queries // LANES) * LANES
    scale = float_of(arguments[SCALE])
    query = words
    keys = shifted(query, half * lanes)
    values = shifted(keys, BLOCK * half)
    weight = shifted(values, BLOCK * half)
    score = floats
    largest = shifted(score, BLOCK * lanes)
    summed = shifted(largest, lanes)
    correction = shifted(summed, lanes)
    _load_queries(arguments, item, head, lanes, query)
    _clear(lanes, head_dim, largest, summed, total)
    head_keys = shifted(pointer(arguments[KEYS], np.uint32(0)), head * arguments[SLOTS] * half)
    head_values = shifted(pointer(arguments[VALUES], np.uint32(0)), head * arguments[SLOTS] * half)
    for begin in range(item[BEGIN], item[END], BLOCK):
        end = min(begin + BLOCK, item[END])
        padded = -(-(end - begin) // ROWS) * ROWS
        run = _copy_block(run, begin, end, head_keys, head_values, half, keys, values)
        _prefetch_block(run, end, min(end + BLOCK, item[END]), head_keys, head_values, half)
        _score(keys, padded, query, half, lanes, score)
        _hide(score, begin, end - begin, padded, item[POSITION], window, queries, repeat, lanes)
        _softmax(score, padded, lanes, scale, largest, summed, correction, weight)
        _accumulate(weight, values, padded // 2, queries, head_dim, lanes, correction, total)
    for lane in range(queries):
        state[2 * lane] = largest[lane] * scale
        state[2 * lane + 1] = summed[lane]


@compiled
def _scratch(arguments):
    """Arrays for `_run_item`: words, scores and the state of each lane, totals, states."""
    head_dim = arguments[HEAD_DIM]
    lanes = -(-arguments[MAX_QUERIES] // LANES) * LANES
    words = np.empty(BLOCK * (head_dim + lanes // 2) + head_dim // 2 * lanes, np.uint32)
    floats = np.empty((BLOCK + 3) * lanes, np.float32)
    return words, floats, np.empty(lanes * head_dim, np.float32), np.empty(2 * lanes, np.float32)


@compiled
def _run_item(arguments, index, head, scratch):
    """Item number `index` for the queries of one KV head."""
    words = pointer(scratch[0].ctypes.data, np.uint32(0))
    floats = pointer(scratch[1].ctypes.data, np.float32(0))
    total = pointer(scratch[2].ctypes.data, np.float32(0))
    state = pointer(scratch[3].ctypes.data, np.float32(0))
    item = shifted(pointer(arguments[ITEMS], np.int64(0)), index * COLUMNS)
    run = pointer(arguments[ITEM_RUNS], np.int64(0))[index]
    runs = shifted(pointer(arguments[RUNS], np.int64(0)), run * RUN_COLUMNS)
    _attend(arguments, item, runs, head, words, floats, state, total)
    column.write(arguments, item, head, np.uint16(0), state, total)


def _run_items(arguments):
    tile_scratch = _scratch(arguments)
    column_scratch = column.column_scratch(arguments)
    while True:
        work = fetch_add(arguments, 1)
        if work >= arguments[ITEM_COUNT] * arguments[KV_HEADS]:
            break
        index, head = work % arguments[ITEM_COUNT], work // arguments[ITEM_COUNT]
        tokens = pointer(arguments[ITEMS], np.int64(0))[index * COLUMNS + TOKENS]
        # Callees get arrays, not pointers: numba frees an array after the last use of its name.
        if tokens * arguments[REPEAT] < arguments[FEWEST_TILED]:
            column.run_item(arguments, index, head, np.uint16(0), column_scratch)
        else:
            _run_item(arguments, index, head, tile_scratch)


@cache
def callback() -> Callback:
    return Callback(_run_items)
