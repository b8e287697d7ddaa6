# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Attention for many queries at a time on processors that multiply bfloat16 (AVX512-BF16).

Each lane of a vector holds one query: the scores of a block of keys are a small matrix product, their softmax
needs no sum across lanes, and a second product adds the weighted values. Queries and weights are bfloat16,
sums and scores float32. Both products are computed by AMX where the processor has it.
"""

from functools import cache

import numpy as np
import torch

from ..common import amx
from ..common.amx_product import DEPTH, SIDE, multiply_square
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
from ..common.numba_tools import compiled, fetch_add, float_of, pointer, shifted
from ..common.threads import Callback
from ..common.vectors import LANES
from ..pages.cells_cpu import is_scaled
from . import items as column
from .items import (
    BY_AMX,
    CELL,
    FEWEST_TILED,
    HEAD_CELLS,
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
    THREADS,
    VALUES,
    WINDOW,
    Q,
)
from .plan import BEGIN, COLUMNS, END, POSITION, TOKEN, TOKENS
from .runs import RUN_COLUMNS
from .tile_cells import interleave, prefetch_some, run_of, some_keys
from .tile_product import ROWS, multiply_narrow, multiply_wide
from .transposing import transpose_words

QUERIES = 64
"""Query heads of an item: four vectors. Its values are copied once for all of them."""

AMX_QUERIES = 128
"""The same with AMX. The times of 64, 128 and 256 could not be told apart."""

FEWEST_QUERIES = 9
"""An item with fewer query heads is not computed in tiles: its keys are read where they are, not copied."""

FEWEST_AMX_QUERIES = 8
"""`FEWEST_QUERIES` on processors with AMX. Whether 9 would be faster there was not measured."""

BLOCK = 128
"""Keys of each turn of the online softmax. With AMX, the times of 64, 128 and 256 could not be told apart."""


@compiled
def _score(keys, key_row, query, half, lanes, score):
    """score[t, lane] = key t · query lane, for ROWS keys"""
    lane = 0
    while lane + 2 * LANES <= lanes:
        to = shifted(score, lane)
        multiply_wide(half, keys, key_row, 1, shifted(query, lane), lanes, to, lanes, False)
        lane += 2 * LANES
    if lane < lanes:
        multiply_narrow(
            half, keys, key_row, 1, shifted(query, lane), lanes, shifted(score, lane), lanes, False
        )


@compiled
def _score_by_amx(keys, key_row, query, half, lanes, score):
    """As `_score`, for SIDE keys."""
    for lane in range(0, lanes, SIDE):
        of_lane = shifted(query, lane)
        multiply_square(
            half, keys, key_row, DEPTH, of_lane, lanes, shifted(score, lane), lanes, False, keys, 0
        )


@compiled
def _scale_scores(score, count, lanes, scales):
    """score[t, lane] *= scales[t]"""
    for t in range(count):
        for lane in range(0, lanes, LANES):
            at = t * lanes + lane
            store_lanes(score, at, multiplied(load_lanes(score, at), scales[t]))


@compiled
def _hide(score, begin, count, padded, position, window, tokens, repeat, lanes):
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
def _softmax(score, count, queries, lanes, scale, scaled, scales, largest, summed, correction, weight):
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
def _correct(queries, head_dim, correction, total):
    """total[query, d] *= correction[query]"""
    for query in range(queries):
        if correction[query] != np.float32(1):
            for d in range(head_dim):
                total[query * head_dim + d] *= correction[query]


@compiled
def _accumulate(weight, values, pairs, queries, head_dim, lanes, total):
    """total[query, d] += sum of weight · value"""
    d = 0
    while d + 2 * LANES <= head_dim:
        for query in range(0, queries, ROWS):
            to = shifted(total, query * head_dim + d)
            multiply_wide(
                pairs, shifted(weight, query), 1, lanes, shifted(values, d), head_dim, to, head_dim, True
            )
        d += 2 * LANES
    if d < head_dim:
        for query in range(0, queries, ROWS):
            to = shifted(total, query * head_dim + d)
            multiply_narrow(
                pairs, shifted(weight, query), 1, lanes, shifted(values, d), head_dim, to, head_dim, True
            )


@compiled
def _accumulate_by_amx(weight, values, pairs, head_dim, lanes, turned, total):
    """As `_accumulate`, for all lanes. turned: memory for the weights in the order of the queries."""
    for lane in range(0, lanes, LANES):
        for pair in range(0, pairs, LANES):
            source = shifted(weight, pair * lanes + lane)
            transpose_words(source, lanes, shifted(turned, lane * BLOCK // 2 + pair), BLOCK // 2)
    for lane in range(0, lanes, SIDE):
        for d in range(0, head_dim, SIDE):
            of_query, of_pair = shifted(turned, lane * BLOCK // 2), shifted(values, d)
            to = shifted(total, lane * head_dim + d)
            multiply_square(
                pairs, of_query, BLOCK // 2, DEPTH, of_pair, head_dim, to, head_dim, True, of_pair, 0
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
def _attend(arguments, item, run, head, empty, words, floats, state, total):
    """Run one item for the queries of one KV head."""
    head_dim, repeat, window = arguments[HEAD_DIM], arguments[REPEAT], arguments[WINDOW]
    cell = arguments[CELL]
    half = head_dim // 2
    queries = item[TOKENS] * repeat
    by_amx = arguments[BY_AMX] != 0
    lane_step, key_step = (SIDE, SIDE) if by_amx else (LANES, ROWS)
    lanes = -(-queries // lane_step) * lane_step
    scale = float_of(arguments[SCALE])
    query = words
    copied = shifted(query, half * lanes)
    values = shifted(copied, SIDE * half)
    weight = shifted(values, BLOCK * half)
    turned = shifted(weight, BLOCK // 2 * lanes)
    score = floats
    largest = shifted(score, BLOCK * lanes)
    summed = shifted(largest, lanes)
    correction = shifted(summed, lanes)
    key_scales = shifted(correction, lanes)
    value_scales = shifted(key_scales, BLOCK)
    _load_queries(arguments, item, head, lanes, query)
    _clear(lanes, head_dim, largest, summed, total)
    first = head * arguments[HEAD_CELLS] * cell
    stored = empty[0]  # only its type counts
    head_keys = arguments[KEYS], first, stored
    head_values = shifted(pointer(arguments[VALUES], stored), first)
    scaled = is_scaled(head_values)
    for begin in range(item[BEGIN], item[END], BLOCK):
        end = min(begin + BLOCK, item[END])
        padded = -(-(end - begin) // key_step) * key_step
        run = run_of(run, begin)
        interleave(run, begin, end, padded, head_values, empty, cell, half, values, value_scales)
        for t in range(0, padded, key_step):
            next_begin = begin + BLOCK + t
            prefetch_some(
                run, next_begin, min(next_begin + key_step, item[END]), head_keys, head_values, cell
            )
            keys, key_row = some_keys(
                run, begin + t, key_step, end, head_keys, empty, cell, half, copied, shifted(key_scales, t)
            )
            to = shifted(score, t * lanes)
            if by_amx:
                _score_by_amx(keys, key_row, query, half, lanes, to)
            else:
                _score(keys, key_row, query, half, lanes, to)
        if scaled:
            _scale_scores(score, padded, lanes, key_scales)
        _hide(score, begin, end - begin, padded, item[POSITION], window, item[TOKENS], repeat, lanes)
        _softmax(
            score, padded, queries, lanes, scale, scaled, value_scales, largest, summed, correction, weight
        )
        _correct(queries, head_dim, correction, total)
        if by_amx:
            _accumulate_by_amx(weight, values, padded // 2, head_dim, lanes, turned, total)
        else:
            _accumulate(weight, values, padded // 2, queries, head_dim, lanes, total)
    for lane in range(queries):
        state[2 * lane] = largest[lane] * scale
        state[2 * lane + 1] = summed[lane]


@compiled
def _scratch(arguments):
    """Arrays for `_run_item`: words, scores and the state of each lane, totals, states, an empty cell."""
    head_dim = arguments[HEAD_DIM]
    lanes = -(-arguments[MAX_QUERIES] // SIDE) * SIDE
    half = head_dim // 2
    words = np.empty((lanes + SIDE + BLOCK) * half + BLOCK * lanes + LANES, np.uint32)
    floats = np.empty((BLOCK + 3) * lanes + 2 * BLOCK + LANES, np.float32)
    total, state = np.empty(lanes * head_dim + LANES, np.float32), np.empty(2 * lanes, np.float32)
    return words, floats, total, state, np.zeros(arguments[CELL], np.float32)


@compiled
def _aligned(array):
    """The address at which the array's first whole cache line begins. Arrays have LANES elements to spare."""
    return (array.ctypes.data + 63) // 64 * 64


@compiled
def _run_item(arguments, index, head, stored, scratch):
    """Item number `index` for the queries of one KV head."""
    words = pointer(_aligned(scratch[0]), np.uint32(0))
    floats = pointer(_aligned(scratch[1]), np.float32(0))
    total = pointer(_aligned(scratch[2]), np.float32(0))
    state = pointer(scratch[3].ctypes.data, np.float32(0))
    item = shifted(pointer(arguments[ITEMS], np.int64(0)), index * COLUMNS)
    run = pointer(arguments[ITEM_RUNS], np.int64(0))[index]
    runs = shifted(pointer(arguments[RUNS], np.int64(0)), run * RUN_COLUMNS)
    empty = pointer(scratch[4].ctypes.data, stored)
    _attend(arguments, item, runs, head, empty, words, floats, state, total)
    column.write(arguments, item, head, np.uint16(0), state, total)


@compiled
def _start_amx(shapes):
    amx.load_shapes(pointer(shapes.ctypes.data, np.uint8(0)))


@compiled
def _run_items(arguments, stored):
    tile_scratch = _scratch(arguments)
    column_scratch = column.column_scratch(arguments)
    shapes = np.empty(amx.SHAPES_BYTES, np.uint8)
    if arguments[BY_AMX] != 0:
        _start_amx(shapes)
    items = arguments[ITEM_COUNT]
    all_work = items * arguments[KV_HEADS]
    while True:
        work = fetch_add(arguments, 1)
        if work >= all_work:
            break
        index, head = work % items, work // items
        tokens = pointer(arguments[ITEMS], np.int64(0))[index * COLUMNS + TOKENS]
        # Callees get arrays, not pointers: numba frees an array after the last use of its name.
        if tokens * arguments[REPEAT] < arguments[FEWEST_TILED]:
            next_work = min(work + arguments[THREADS], all_work - 1)
            next_index, next_head = next_work % items, next_work // items
            column.run_item(
                arguments, index, head, next_index, next_head, np.uint16(0), stored, column_scratch
            )
        else:
            _run_item(arguments, index, head, stored, tile_scratch)
    if arguments[BY_AMX] != 0:
        amx.release_tiles()


def _bfloat16(arguments):
    _run_items(arguments, np.uint16(0))


def _int8(arguments):
    _run_items(arguments, np.int8(0))


_RUN = {torch.bfloat16: _bfloat16, torch.int8: _int8}


@cache
def callback(stored: torch.dtype) -> Callback:
    """The callback that runs the items, for a cache of `stored`."""
    return Callback(_RUN[stored])
