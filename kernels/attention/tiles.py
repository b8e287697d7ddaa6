"""Attention for many queries at a time on processors that multiply bfloat16 (AVX512-BF16).

Each lane of a vector holds one query: the scores of a block of keys are a small matrix product, their softmax
needs no sum across lanes, and a second product adds the weighted values. Up to eight queries would leave half
of the lanes unused, so several lanes share a query then. Queries and weights are bfloat16, sums and scores
float32. Both products are computed by AMX where the processor has it.
"""

import numpy as np
import torch

from ..common import amx
from ..common.amx import DEPTH, SIDE, multiply_square
from ..common.jit import compiled_fast
from ..common.numba_tools import CELL_KIND, fetch_add, pointer, shift, unpack_float
from ..common.threads import ParallelKernel
from ..common.vectors import LANES
from ..pages.cells_cpu import element_bytes, is_scaled
from . import items as column
from .items import (
    BY_AMX,
    CELL,
    HEAD_CELLS,
    HEAD_DIM,
    ITEM_COUNT,
    ITEMS,
    KEYS,
    KV_HEADS,
    MAX_QUERIES,
    MIN_TILED,
    REACH,
    REPEAT,
    SCALE,
    SOFTCAP,
    VALUES,
)
from .plan import BEGIN, COLUMNS, END, POSITION, TOKENS
from .runs import RUN_BEGIN, RUN_CELL, find_run
from .tile_inputs import (
    can_be_read_in_place,
    find_next_item,
    find_places,
    find_work,
    interleave,
    load_queries,
    load_words,
    prefetch_cells_at,
    some_keys,
    transpose_words,
)
from .tile_product import (
    ROWS,
    add_16,
    add_16_apart,
    add_16_of_4,
    add_32,
    add_32_ahead,
    add_32_apart,
    add_32_of_4,
    score_4,
    score_8,
    score_16,
    score_16_ahead,
    score_32,
    score_32_ahead,
)
from .tile_softmax import correct, hide, scale_few_scores, scale_scores, softmax, softmax_of_few

AMX_QUERIES = 128
"""Query heads of a work item, at most, with AMX. The times of 64, 128 and 256 could not be told apart."""

MIN_QUERIES = 3
"""An item with fewer query heads is not computed in tiles. Two would take 1.06 to 1.35 times as long there
(0.9 times with heads of 64 elements)."""

MIN_AMX_QUERIES = 8
"""`MIN_QUERIES` on processors with AMX. Whether another number would be faster there was not measured."""

BLOCK = 128
"""Keys of each turn of the online softmax. 64 take about 1 % longer; with AMX, the times of 64, 128 and 256
could not be told apart."""


@compiled_fast
def _score(keys, key_row, query, half, words, lanes, score, later, key_bytes):
    """score[t, lane] = key t · query lane, for ROWS keys.

    Prefetches the ROWS keys that begin at `later` if they lie side by side.

    words: how many lanes share a query, each for some of its words: 2 for up to LANES // 2 queries, which
    halves the time; 4 for up to LANES // 4, which takes a quarter. The sums are then added in another order.
    """
    step = ROWS * key_bytes // half
    if words == 4:
        score_4(half // 4, keys, key_row, 4, query, LANES, score, lanes, later, 4 * step)
    elif words == 2:
        score_8(half // 2, keys, key_row, 2, query, LANES, score, lanes, later, 2 * step)
    elif lanes == LANES:
        score_16_ahead(half, keys, key_row, 1, query, lanes, score, lanes, later, step)
    else:
        score_32_ahead(half, keys, key_row, 1, query, lanes, score, lanes, later, step)
        for lane in range(2 * LANES, lanes, 2 * LANES):
            of_lane, to = shift(query, lane), shift(score, lane)
            if lane + LANES == lanes:
                score_16(half, keys, key_row, 1, of_lane, lanes, to, lanes, later, step)
            else:
                score_32(half, keys, key_row, 1, of_lane, lanes, to, lanes, later, step)


@compiled_fast
def _score_by_amx(keys, key_row, query, half, lanes, score):
    """As `_score`, for SIDE keys, without prefetching."""
    for lane in range(0, lanes, SIDE):
        of_lane = shift(query, lane)
        multiply_square(half, keys, key_row, DEPTH, of_lane, lanes, shift(score, lane), lanes, False, keys, 0)


@compiled_fast
def _accumulate(weight, values, pairs, queries, head_dim, lanes, total, later, places, value_bytes):
    """total[query, d] += sum of weight · value

    Meanwhile it prefetches the values that lie `places` bytes after `later`.
    """
    for d in range(0, head_dim, 2 * LANES):
        of_d, some = shift(later, d * value_bytes // head_dim), shift(values, d)
        for query in range(0, queries, ROWS):
            of_query, to = shift(weight, query), shift(total, query * head_dim + d)
            if d + LANES == head_dim:
                add_16(pairs, of_query, 1, lanes, some, head_dim, to, head_dim, of_d, places)
            elif query == 0:
                add_32_ahead(pairs, of_query, 1, lanes, some, head_dim, to, head_dim, of_d, places)
            else:
                add_32(pairs, of_query, 1, lanes, some, head_dim, to, head_dim, of_d, places)


@compiled_fast
def _accumulate_few(weight, values, value_row, pairs, queries, head_dim, lanes, total, later, places):
    """As `_accumulate`, for at most LANES // 2 queries, of values that are read in the cache.

    value_row: words from one value to the next
    """
    few_rows = queries <= LANES // 4
    for d in range(0, head_dim, 2 * LANES):
        of_d, some, to = shift(later, 2 * d), shift(values, d // 2), shift(total, d)
        if few_rows and d + LANES == head_dim:
            add_16_of_4(pairs, weight, 1, lanes, some, value_row, to, head_dim, of_d, places)
        elif few_rows:
            add_32_of_4(pairs, weight, 1, lanes, some, value_row, to, head_dim, of_d, places)
        elif d + LANES == head_dim:
            add_16_apart(pairs, weight, 1, lanes, some, value_row, to, head_dim, of_d, places)
        else:
            add_32_apart(pairs, weight, 1, lanes, some, value_row, to, head_dim, of_d, places)


@compiled_fast
def _accumulate_by_amx(weight, values, pairs, head_dim, lanes, turned, total):
    """As `_accumulate`, for all lanes. turned: memory for the weights in the order of the queries."""
    for lane in range(0, lanes, LANES):
        for pair in range(0, pairs, LANES):
            source = shift(weight, pair * lanes + lane)
            transpose_words(source, lanes, shift(turned, lane * BLOCK // 2 + pair), BLOCK // 2)
    for lane in range(0, lanes, SIDE):
        for d in range(0, head_dim, SIDE):
            of_query, of_pair = shift(turned, lane * BLOCK // 2), shift(values, d)
            to = shift(total, lane * head_dim + d)
            multiply_square(
                pairs, of_query, BLOCK // 2, DEPTH, of_pair, head_dim, to, head_dim, True, of_pair, 0
            )


@compiled_fast
def _clear(words, lanes, width, head_dim, score, largest, summed, total):
    if words == 4:
        for lane in range(BLOCK * lanes):  # the products write to half of these lanes only
            score[lane] = np.float32(0)
    for lane in range(width):
        largest[lane] = np.float32(-3e38)
        summed[lane] = np.float32(0)
    for d in range(lanes * head_dim):
        total[d] = np.float32(0)


@compiled_fast
def _words(queries, is_fixed):
    """How many lanes share a query (see `_score`): one if the order of additions `is_fixed`."""
    if is_fixed or queries > LANES // 2:
        return 1
    return 2 if queries > LANES // 4 else 4


@compiled_fast
def _attend(arguments, item, run, head, next_item, empty, memory, floats, places, state, total):
    """Computes the attention of the query heads of one KV head to the keys of one work item.

    next_item: the work item that the thread probably takes next (see `find_places`). Its first cells are
    prefetched at the end of this item.
    """
    head_dim, repeat, reach = arguments[HEAD_DIM], arguments[REPEAT], arguments[REACH]
    cell = arguments[CELL]
    cell_bytes = cell * element_bytes(empty)
    half = head_dim // 2
    queries = item[TOKENS] * repeat
    by_amx = arguments[BY_AMX] != 0
    words = _words(queries, by_amx or arguments[MIN_TILED] == 0)
    lane_step, key_step = (SIDE, SIDE) if by_amx else (LANES, ROWS)
    lanes = LANES // 2 if words > 1 else -(-queries // lane_step) * lane_step
    width = max(lanes, LANES)
    scale, softcap = unpack_float(arguments[SCALE]), unpack_float(arguments[SOFTCAP])
    query = memory
    copied = shift(query, half * width)
    values = shift(copied, SIDE * half)
    weight = shift(values, BLOCK * half)
    turned = shift(weight, BLOCK // 2 * lanes)
    score = floats
    largest = shift(score, BLOCK * lanes)
    summed = shift(largest, width)
    correction = shift(summed, width)
    key_scales = shift(correction, width)
    value_scales = shift(key_scales, BLOCK)
    if words > 1:
        load_words(arguments, item, head, LANES // words, words, query)
    else:
        load_queries(arguments, item, head, lanes, query, copied)
    _clear(words, lanes, width, head_dim, score, largest, summed, total)
    first = head * arguments[HEAD_CELLS] * cell
    stored = empty[0]  # only its type counts
    head_keys = arguments[KEYS], first, stored
    head_values = shift(pointer(arguments[VALUES], stored), first)
    scaled = is_scaled(head_values)
    later_keys = pointer(arguments[KEYS], np.uint8(0))
    later_values = pointer(arguments[VALUES], np.uint8(0))
    of_item = item[END], head * arguments[HEAD_CELLS]
    online = largest, summed, correction, weight
    ahead = min(BLOCK, item[END] - item[BEGIN])
    for begin in range(item[BEGIN], item[END], BLOCK):
        end = min(begin + BLOCK, item[END])
        padded = -(-(end - begin) // key_step) * key_step
        run = find_run(run, begin)
        find_places(run, begin + ahead, padded, of_item, next_item, cell_bytes, places)
        in_place = words > 1 and (end - begin) % 2 == 0 and can_be_read_in_place(run, end, head_values)
        if not in_place:
            interleave(run, begin, padded, end, head_values, empty, cell, half, values, value_scales)
        for t in range(0, padded, key_step):
            scales = shift(key_scales, t)
            keys, key_row = some_keys(
                run, begin + t, key_step, end, head_keys, empty, cell, half, copied, scales
            )
            to = shift(score, t * lanes)
            if by_amx:
                prefetch_cells_at(shift(places, t), key_step, cell_bytes, later_keys, later_values)
                _score_by_amx(keys, key_row, query, half, lanes, to)
            else:
                later = shift(later_keys, places[t])
                _score(keys, key_row, query, half, words, lanes, to, later, cell_bytes)
        if scaled and words > 1:
            scale_few_scores(score, padded, key_scales)
        elif scaled:
            scale_scores(score, padded, lanes, key_scales)
        if softcap != np.float32(0):  # scores are scaled by the softmax
            column.cap_scores(score, padded * lanes, scale / softcap, softcap / scale)
        hide(score, begin, end - begin, padded, item[POSITION], reach, item[TOKENS], repeat, lanes)
        if words > 1:
            softmax_of_few(score, padded, scale, scaled, value_scales, *online)
        else:
            softmax(score, padded, queries, lanes, scale, scaled, value_scales, *online)
        correct(queries, head_dim, correction, total)
        if in_place:
            place = first + (run[RUN_CELL] + begin - run[RUN_BEGIN]) * cell
            values_there = shift(pointer(arguments[VALUES], np.uint32(0)), place // 2)
            pairs, row = (end - begin) // 2, cell // 2
            _accumulate_few(
                weight, values_there, row, pairs, queries, head_dim, lanes, total, later_values, places
            )
        elif by_amx:
            _accumulate_by_amx(weight, values, padded // 2, head_dim, lanes, turned, total)
        else:
            _accumulate(
                weight,
                values,
                padded // 2,
                queries,
                head_dim,
                lanes,
                total,
                later_values,
                places,
                cell_bytes,
            )
    for lane in range(queries):
        state[2 * lane] = largest[lane] * scale
        state[2 * lane + 1] = summed[lane]


@compiled_fast
def _scratch(arguments):
    """Arrays for `_run_item`: words, scores and the state of each lane, totals, states, an empty cell, places
    of cells."""
    head_dim = arguments[HEAD_DIM]
    lanes = -(-arguments[MAX_QUERIES] // SIDE) * SIDE
    half = head_dim // 2
    words = np.empty((lanes + SIDE + BLOCK) * half + BLOCK * lanes + LANES, np.uint32)
    floats = np.empty((BLOCK + 3) * lanes + 2 * BLOCK + LANES, np.float32)
    total, state = np.empty(lanes * head_dim + LANES, np.float32), np.empty(2 * lanes, np.float32)
    empty, places = np.zeros(arguments[CELL], np.float32), np.empty(BLOCK, np.int64)
    return words, floats, total, state, empty, places


@compiled_fast
def _aligned(array):
    """The address at which the array's first whole cache line begins. Arrays have LANES elements to spare."""
    return (array.ctypes.data + 63) // 64 * 64


@compiled_fast
def _run_item(arguments, index, head, next_index, next_head, stored, scratch):
    """Item number `index` for the queries of one KV head."""
    words = pointer(_aligned(scratch[0]), np.uint32(0))
    floats = pointer(_aligned(scratch[1]), np.float32(0))
    total = pointer(_aligned(scratch[2]), np.float32(0))
    state = pointer(scratch[3].ctypes.data, np.float32(0))
    item = shift(pointer(arguments[ITEMS], np.int64(0)), index * COLUMNS)
    run = column.run_of_item(arguments, index)
    empty = pointer(scratch[4].ctypes.data, stored)
    places = pointer(scratch[5].ctypes.data, np.int64(0))
    next_item = find_next_item(arguments, next_index, next_head)
    _attend(arguments, item, run, head, next_item, empty, words, floats, places, state, total)
    column.write(arguments, item, head, np.uint16(0), state, total)


@compiled_fast
def _start_amx(shapes):
    amx.load_shapes(pointer(shapes.ctypes.data, np.uint8(0)))


@compiled_fast
def _run_items(arguments, stored):
    tile_scratch = _scratch(arguments)
    column_scratch = column.column_scratch(arguments)
    shapes = np.empty(amx.SHAPES_BYTES, np.uint8)
    if arguments[BY_AMX] != 0:
        _start_amx(shapes)
    all_work = arguments[ITEM_COUNT] * arguments[KV_HEADS]
    while True:
        work = fetch_add(arguments, 1)
        if work >= all_work:
            break
        index, head, next_index, next_head, is_tiled = find_work(arguments, work, all_work)
        # Callees get arrays, not pointers: numba frees an array after the last use of its name.
        if not is_tiled:
            column.run_item(
                arguments, index, head, next_index, next_head, np.uint16(0), stored, column_scratch
            )
        else:
            _run_item(arguments, index, head, next_index, next_head, stored, tile_scratch)
    if arguments[BY_AMX] != 0:
        amx.release_tiles()


KERNELS = {dtype: ParallelKernel(_run_items, CELL_KIND[dtype]) for dtype in (torch.bfloat16, torch.int8)}
"""by dtype of the cache"""
