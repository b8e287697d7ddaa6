"""Attention for many queries at a time by float32 products: for models in float32 and float16, and for those
in bfloat16 on processors that do not multiply it.

The keys and values of a block are widened to float32 once for all queries of an item. As in `tiles`, each
lane of a vector holds one query.
"""

import numpy as np
import torch

from ..common.float_products import ROWS, multiply_floats
from ..common.jit import compiled_fast
from ..common.lanes import load_wide, scale_lanes, store_lanes
from ..common.numba_tools import CELL_KIND, KIND, fetch_add, load, pointer, shift, unpack_float
from ..common.threads import ParallelKernel
from ..common.vectors import LANES
from ..pages.cells_cpu import element_bytes, read_scale
from . import items as column
from .items import (
    CELL,
    HEAD_CELLS,
    HEAD_DIM,
    ITEM_COUNT,
    ITEMS,
    KEYS,
    KV_HEADS,
    MAX_QUERIES,
    Q_STRIDE,
    REACH,
    REPEAT,
    SCALE,
    SOFTCAP,
    VALUES,
    Q,
)
from .plan import BEGIN, COLUMNS, END, POSITION, TOKEN, TOKENS
from .runs import RUN_BEGIN, RUN_CELL, RUN_LENGTH, find_run
from .tile_inputs import find_next_item, find_places, find_work, prefetch_cells_at
from .tile_softmax import correct, hide, softmax

MIN_QUERIES = 9
"""An item with fewer query heads is not computed in tiles."""

BLOCK = 96
"""Keys of each turn of the online softmax: a multiple of ROWS."""


@compiled_fast
def _load_queries(arguments, item, head, lanes, kind, query):
    """query[lane // LANES, d, lane % LANES] = element d of a query; zeros in unused lanes."""
    head_dim, repeat = arguments[HEAD_DIM], arguments[REPEAT]
    queries = item[TOKENS] * repeat
    for lane in range(lanes):
        to = shift(query, lane // LANES * LANES * head_dim + lane % LANES)
        if lane >= queries:
            for d in range(head_dim):
                to[d * LANES] = np.float32(0)
            continue
        row, query_head = item[TOKEN] + lane // repeat, head * repeat + lane % repeat
        source = shift(pointer(arguments[Q], kind), row * arguments[Q_STRIDE] + query_head * head_dim)
        for d in range(head_dim):
            to[d * LANES] = load(source, d)


@compiled_fast
def _widen(run, begin, end, head_cells, cell, head_dim, wide):
    """wide[t, :] = the elements of the cell of position `begin` + t, times its scale if it has one, for the
    positions up to `end`. run: the run of `begin`"""
    at = begin
    while at < end:
        run = find_run(run, at)
        stop = min(end, run[RUN_BEGIN] + run[RUN_LENGTH])
        source = shift(head_cells, (run[RUN_CELL] + at - run[RUN_BEGIN]) * cell)
        for t in range(stop - at):
            here, to = shift(source, t * cell), shift(wide, (at - begin + t) * head_dim)
            scale = read_scale(here, head_dim)
            for d in range(0, head_dim, LANES):
                store_lanes(to, d, scale_lanes(load_wide(here, d), scale))
        at = stop


@compiled_fast
def _score(keys, count, query, lanes, head_dim, score):
    """score[t, lane] = key t · query lane, for `count` keys."""
    for t in range(0, count, ROWS):
        rows, here = min(ROWS, count - t), shift(keys, t * head_dim)
        for lane in range(0, lanes, LANES):
            of_lane, to = shift(query, lane * head_dim), shift(score, t * lanes + lane)
            multiply_floats(rows, head_dim, here, head_dim, 1, of_lane, LANES, to, lanes, False)


@compiled_fast
def _accumulate(weight, values, count, queries, lanes, head_dim, total):
    """total[query, d] += sum over t < count of weight[t, query] · value t"""
    for query in range(0, queries, ROWS):
        rows, of_query = min(ROWS, queries - query), shift(weight, query)
        for d in range(0, head_dim, LANES):
            to = shift(total, query * head_dim + d)
            multiply_floats(rows, count, of_query, 1, lanes, shift(values, d), head_dim, to, head_dim, True)


@compiled_fast
def _attend(arguments, item, run, head, next_item, kind, stored, memory, places, state, total):
    """Computes the attention of the query heads of one KV head to the keys of one work item.

    next_item: the work item that the thread probably takes next (see `find_places`). Its first cells are
    prefetched at the end of this item.
    """
    head_dim, repeat, reach = arguments[HEAD_DIM], arguments[REPEAT], arguments[REACH]
    cell = arguments[CELL]
    queries = item[TOKENS] * repeat
    lanes = -(-queries // LANES) * LANES
    scale, softcap = unpack_float(arguments[SCALE]), unpack_float(arguments[SOFTCAP])
    query = memory
    keys = shift(query, lanes * head_dim)
    values = shift(keys, BLOCK * head_dim)
    score = shift(values, BLOCK * head_dim)
    largest = shift(score, BLOCK * lanes)
    summed = shift(largest, lanes)
    correction = shift(summed, lanes)
    _load_queries(arguments, item, head, lanes, kind, query)
    for lane in range(lanes):
        largest[lane] = np.float32(-3e38)
        summed[lane] = np.float32(0)
    for d in range(queries * head_dim):
        total[d] = np.float32(0)
    first = head * arguments[HEAD_CELLS] * cell
    head_keys = shift(pointer(arguments[KEYS], stored), first)
    head_values = shift(pointer(arguments[VALUES], stored), first)
    all_keys, all_values = pointer(arguments[KEYS], np.uint8(0)), pointer(arguments[VALUES], np.uint8(0))
    of_item = item[END], head * arguments[HEAD_CELLS]
    cell_bytes = cell * element_bytes(head_keys)
    ahead = min(BLOCK, item[END] - item[BEGIN])
    for begin in range(item[BEGIN], item[END], BLOCK):
        end = min(begin + BLOCK, item[END])
        count = end - begin
        run = find_run(run, begin)
        find_places(run, begin + ahead, count, of_item, next_item, cell_bytes, places)
        prefetch_cells_at(places, count, cell_bytes, all_keys, all_values)
        _widen(run, begin, end, head_keys, cell, head_dim, keys)
        _widen(run, begin, end, head_values, cell, head_dim, values)
        _score(keys, count, query, lanes, head_dim, score)
        if softcap != np.float32(0):  # scores are scaled by the softmax
            column.cap_scores(score, count * lanes, scale / softcap, softcap / scale)
        padded = count + count % 2
        hide(score, begin, count, padded, item[POSITION], reach, item[TOKENS], repeat, lanes)
        online = largest, summed, correction, score
        softmax(score, padded, queries, lanes, scale, False, score, *online)  # values have no scales left
        correct(queries, head_dim, correction, total)
        _accumulate(score, values, count, queries, lanes, head_dim, total)
    for lane in range(queries):
        state[2 * lane] = largest[lane] * scale
        state[2 * lane + 1] = summed[lane]


@compiled_fast
def _scratch(arguments):
    """Arrays for `_run_item`: queries, keys, values, scores and the state of each lane; totals; states;
    places of cells."""
    head_dim = arguments[HEAD_DIM]
    lanes = -(-arguments[MAX_QUERIES] // LANES) * LANES
    floats = (lanes + 2 * BLOCK) * head_dim + (BLOCK + 3) * lanes + LANES
    total, state = np.empty(lanes * head_dim + LANES, np.float32), np.empty(2 * lanes, np.float32)
    return np.empty(floats, np.float32), total, state, np.empty(BLOCK, np.int64)


@compiled_fast
def _run_item(arguments, index, head, next_index, next_head, kind, stored, scratch):
    """Item number `index` for the queries of one KV head."""
    memory = pointer((scratch[0].ctypes.data + 63) // 64 * 64, np.float32(0))
    total = pointer((scratch[1].ctypes.data + 63) // 64 * 64, np.float32(0))
    state = pointer(scratch[2].ctypes.data, np.float32(0))
    places = pointer(scratch[3].ctypes.data, np.int64(0))
    item = shift(pointer(arguments[ITEMS], np.int64(0)), index * COLUMNS)
    run, next_item = column.run_of_item(arguments, index), find_next_item(arguments, next_index, next_head)
    _attend(arguments, item, run, head, next_item, kind, stored, memory, places, state, total)
    column.write(arguments, item, head, kind, state, total)


@compiled_fast
def _run_items(arguments, kind, stored):
    tile_scratch = _scratch(arguments)
    column_scratch = column.column_scratch(arguments)
    all_work = arguments[ITEM_COUNT] * arguments[KV_HEADS]
    while True:
        work = fetch_add(arguments, 1)
        if work >= all_work:
            break
        index, head, next_index, next_head, is_tiled = find_work(arguments, work, all_work)
        # Callees get arrays, not pointers: numba frees an array after the last use of its name.
        if not is_tiled:
            column.run_item(arguments, index, head, next_index, next_head, kind, stored, column_scratch)
        else:
            _run_item(arguments, index, head, next_index, next_head, kind, stored, tile_scratch)


KERNELS = {
    (dtype, stored): ParallelKernel(_run_items, kind, CELL_KIND[stored])
    for dtype, kind in KIND.items()
    for stored in (dtype, torch.int8)
}
"""by dtype of the queries and of the cache"""
