# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Attention for many queries at a time on processors that multiply bfloat16 (AVX512-BF16).

Each lane of a vector holds one query: the scores of a block of keys are a small matrix product, their softmax
needs no sum across lanes, and a second product adds the weighted values. Queries and weights are bfloat16,
sums and scores float32.
"""

from functools import cache

import numpy as np
import torch

from ..common.lanes import (
    exp_of_difference,
    larger,
    load_lanes,
    multiplied,
    plus,
    store_lanes,
    store_pairs,
    times,
)
from ..common.numba_tools import compiled, fetch_add, float_of, pointer, prefetch, shifted
from ..common.threads import Callback
from ..common.vectors import LANES
from ..pages.cells_cpu import bfloat16_at, is_scaled, line_elements, pair_at, scale_of
from . import items as column
from .items import (
    CELL,
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
from .plan import BEGIN, COLUMNS, END, POSITION, TOKEN, TOKENS
from .runs import RUN_BEGIN, RUN_COLUMNS, RUN_LENGTH, RUN_SLOT
from .tile_product import ROWS, multiply_narrow, multiply_wide

QUERIES = 64
"""Query heads of an item: four vectors. Its keys and values are copied once for all of them."""

FEW_QUERIES = 8
"""Items with fewer query heads read their keys in place, without copying them first."""

BLOCK = 64
"""Keys of each turn of the online softmax; with their values they fit into the first-level cache."""


@compiled
def _copy_block(run, begin, end, head_keys, head_values, cell, half, keys, values, scales):
    """Copy keys [begin, end) as words of bfloat16 and interleave their values in pairs of keys. Returns the
    run of the first key.

    Both copies are padded with zeros to a multiple of ROWS. scales: BLOCK factors of keys, then of values, if
    their cells are scaled.
    """
    while run[RUN_BEGIN] + run[RUN_LENGTH] <= begin:
        run = shifted(run, RUN_COLUMNS)
    first = run
    for t in range(-(-(end - begin) // ROWS) * ROWS):
        pair = shifted(values, t // 2 * 2 * half)
        if begin + t >= end:
            _write_zeros(t, half, keys, pair, scales)
            continue
        if run[RUN_BEGIN] + run[RUN_LENGTH] <= begin + t:
            run = shifted(run, RUN_COLUMNS)
        place = (run[RUN_SLOT] + begin + t - run[RUN_BEGIN]) * cell
        key, value = shifted(head_keys, place), shifted(head_values, place)
        for w in range(half):
            keys[t * half + w] = pair_at(key, w)
        if t % 2 == 0:
            for d in range(2 * half):
                pair[d] = bfloat16_at(value, d)
        else:
            for d in range(2 * half):
                pair[d] |= bfloat16_at(value, d) << np.uint32(16)
        if is_scaled(key):
            scales[t] = scale_of(key, 2 * half)
            scales[BLOCK + t] = scale_of(value, 2 * half)
    return first


@compiled
def _write_zeros(t, half, keys, pair, scales):
    """Pad the copies with key t. The upper halves of a pair's words are zeros already."""
    for w in range(half):
        keys[t * half + w] = np.uint32(0)
    if t % 2 == 0:
        for d in range(2 * half):
            pair[d] = np.uint32(0)
    scales[t] = np.float32(0)
    scales[BLOCK + t] = np.float32(0)


@compiled
def _prefetch_block(run, begin, end, head_keys, head_values, cell):
    """Prefetch keys and values [begin, end), which are copied next."""
    for t in range(begin, end):
        while run[RUN_BEGIN] + run[RUN_LENGTH] <= t:
            run = shifted(run, RUN_COLUMNS)
        place = (run[RUN_SLOT] + t - run[RUN_BEGIN]) * cell
        for i in range(0, cell, line_elements(head_keys)):
            prefetch(head_keys, place + i)
            prefetch(head_values, place + i)


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
def _scale_scores(score, count, lanes, scales):
    """score[t, lane] *= scales[t]"""
    for t in range(count):
        for lane in range(0, lanes, LANES):
            at = t * lanes + lane
            store_lanes(score, at, multiplied(load_lanes(score, at), scales[t]))


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
def _softmax(score, count, lanes, scale, scaled, scales, largest, summed, correction, weight):
    """Turn scores into weights, in pairs of keys, and update each lane's largest score and sum.

    scales: factors of the weights, if `scaled`; the sums are of the weights without them.
    correction: the factor by which the caller must multiply the totals of earlier blocks.
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
            if scaled:
                low, high = multiplied(low, scales[t]), multiplied(high, scales[t + 1])
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
def _attend(arguments, item, run, head, stored, words, floats, state, total):
    """Run one item for the queries of one KV head."""
    head_dim, repeat, window = arguments[HEAD_DIM], arguments[REPEAT], arguments[WINDOW]
    cell = arguments[CELL]
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
    scales = shifted(correction, lanes)
    _load_queries(arguments, item, head, lanes, query)
    _clear(lanes, head_dim, largest, summed, total)
    head_keys = shifted(pointer(arguments[KEYS], stored), head * arguments[SLOTS] * cell)
    head_values = shifted(pointer(arguments[VALUES], stored), head * arguments[SLOTS] * cell)
    scaled = is_scaled(head_keys)
    for begin in range(item[BEGIN], item[END], BLOCK):
        end = min(begin + BLOCK, item[END])
        padded = -(-(end - begin) // ROWS) * ROWS
        run = _copy_block(run, begin, end, head_keys, head_values, cell, half, keys, values, scales)
        _prefetch_block(run, end, min(end + BLOCK, item[END]), head_keys, head_values, cell)
        _score(keys, padded, query, half, lanes, score)
        if scaled:
            _scale_scores(score, padded, lanes, scales)
        _hide(score, begin, end - begin, padded, item[POSITION], window, queries, repeat, lanes)
        factors = shifted(scales, BLOCK)
        _softmax(score, padded, lanes, scale, scaled, factors, largest, summed, correction, weight)
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
    floats = np.empty((BLOCK + 3) * lanes + 2 * BLOCK, np.float32)
    return words, floats, np.empty(lanes * head_dim, np.float32), np.empty(2 * lanes, np.float32)


@compiled
def _run_item(arguments, index, head, stored, scratch):
    """Item number `index` for the queries of one KV head."""
    words = pointer(scratch[0].ctypes.data, np.uint32(0))
    floats = pointer(scratch[1].ctypes.data, np.float32(0))
    total = pointer(scratch[2].ctypes.data, np.float32(0))
    state = pointer(scratch[3].ctypes.data, np.float32(0))
    item = shifted(pointer(arguments[ITEMS], np.int64(0)), index * COLUMNS)
    run = pointer(arguments[ITEM_RUNS], np.int64(0))[index]
    runs = shifted(pointer(arguments[RUNS], np.int64(0)), run * RUN_COLUMNS)
    _attend(arguments, item, runs, head, stored, words, floats, state, total)
    column.write(arguments, item, head, np.uint16(0), state, total)


@compiled
def _run_items(arguments, stored):
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
            column.run_item(arguments, index, head, np.uint16(0), stored, column_scratch)
        else:
            _run_item(arguments, index, head, stored, tile_scratch)


def _bfloat16(arguments):
    _run_items(arguments, np.uint16(0))


def _int8(arguments):
    _run_items(arguments, np.int8(0))


_RUN = {torch.bfloat16: _bfloat16, torch.int8: _int8}


@cache
def callback(stored: torch.dtype) -> Callback:
    """The callback that runs the items, for a cache of `stored`."""
    return Callback(_RUN[stored])
