"""The queries, keys and values of an item in the order in which tiles multiply them (see `tiles`)."""

import numpy as np
from llvmlite import ir

from ..common.emits import INT, TO_WORDS, VOID, emits
from ..common.jit import compiled_fast
from ..common.llvm import read, size, write
from ..common.numba_tools import pointer, prefetch, shift
from ..common.vectors import LANES, WORDS
from ..pages.cells_cpu import LINE_BYTES, bfloat16_at, is_scaled, pair_at, read_scale
from .items import (
    HEAD_CELLS,
    HEAD_DIM,
    ITEM_COUNT,
    ITEMS,
    MIN_TILED,
    Q_STRIDE,
    REPEAT,
    THREADS,
    Q,
    run_of_item,
)
from .plan import BEGIN, COLUMNS, END, TOKEN, TOKENS
from .runs import RUN_BEGIN, RUN_CELL, RUN_LENGTH, find_run


@compiled_fast
def find_work(arguments, work, all_work):
    """Returns the item and the KV head of a work, those of the work that the thread probably takes next, and
    whether the item has enough query heads for tiles."""
    items = arguments[ITEM_COUNT]
    index, following = work % items, min(work + arguments[THREADS], all_work - 1)
    tokens = pointer(arguments[ITEMS], np.int64(0))[index * COLUMNS + TOKENS]
    is_tiled = tokens * arguments[REPEAT] >= arguments[MIN_TILED]
    return index, work // items, following % items, following // items, is_tiled


@compiled_fast
def find_next_item(arguments, index, head):
    """Returns what `find_places` needs of an item: its end, the first cell of the KV head, the run of the
    item's first key, and the position of that key."""
    item = shift(pointer(arguments[ITEMS], np.int64(0)), index * COLUMNS)
    return item[END], head * arguments[HEAD_CELLS], run_of_item(arguments, index), item[BEGIN]


@compiled_fast
def load_queries(arguments, item, head, lanes, query, copied):
    """query[w, lane] = word w of a query, for an item's queries; zeros in unused lanes.

    copied: memory for LANES queries
    """
    half = arguments[HEAD_DIM] // 2
    if half % LANES > 0:
        load_words(arguments, item, head, lanes, 1, query)
        return
    for first in range(0, lanes, LANES):
        some = min(LANES, item[TOKENS] * arguments[REPEAT] - first)
        for w in range(max(0, some) * half, LANES * half):
            copied[w] = np.uint32(0)
        for lane in range(some):
            source, to = _query_at(arguments, item, head, first + lane), shift(copied, lane * half)
            for w in range(half):
                to[w] = source[w]
        for w in range(0, half, LANES):
            transpose_words(shift(copied, w), half, shift(query, w * lanes + first), lanes)


@compiled_fast
def load_words(arguments, item, head, lanes, words, query):
    """As `load_queries`, word by word: query[w // words, lane, w % words] = word w of a query.

    lanes: the number of queries that `query` has room for
    """
    half = arguments[HEAD_DIM] // 2
    for i in range(half * lanes):
        query[i] = np.uint32(0)
    for lane in range(item[TOKENS] * arguments[REPEAT]):
        source = _query_at(arguments, item, head, lane)
        for w in range(half):
            query[(w // words * lanes + lane) * words + w % words] = source[w]


@compiled_fast
def _query_at(arguments, item, head, lane):
    """Query number `lane` of an item, as a pointer to words of two elements."""
    head_dim, repeat = arguments[HEAD_DIM], arguments[REPEAT]
    row, query_head = item[TOKEN] + lane // repeat, head * repeat + lane % repeat
    place = row * arguments[Q_STRIDE] + query_head * head_dim
    return shift(pointer(arguments[Q], np.uint32(0)), place // 2)


@emits(VOID, TO_WORDS, INT, TO_WORDS, INT)
def transpose_words(builder, source, source_row, target, target_row):
    """Writes the transpose of 16 × 16 words; the rows lie `source_row` and `target_row` words apart."""
    places = [builder.gep(source, [builder.mul(source_row, size(row))]) for row in range(LANES)]
    rows = [read(builder, place, WORDS) for place in places]
    distance = 1
    while distance < LANES:
        rows = _exchange(builder, rows, distance)
        distance *= 2
    for row, value in enumerate(rows):
        write(builder, value, builder.gep(target, [builder.mul(target_row, size(row))]))


def _exchange(builder: ir.IRBuilder, rows: list[ir.Value], distance: int) -> list[ir.Value]:
    """One step of the transpose, which takes the rows in pairs that are `distance` apart. In each square of
    2 × `distance` columns, the right half of the first row and the left half of the second are exchanged."""
    found = list(rows)
    for row in range(LANES):
        if row & distance:
            continue
        other = row | distance
        lower = [lane + LANES - distance if lane & distance else lane for lane in range(LANES)]
        upper = [lane + LANES if lane & distance else lane + distance for lane in range(LANES)]
        for at, order in ((row, lower), (other, upper)):
            mask = ir.Constant(WORDS, order)
            found[at] = builder.shuffle_vector(rows[row], rows[other], mask)
    return found


@compiled_fast
def can_be_read_in_place(run, end, cells):
    """Whether the cells up to the position `end` need no copy: they are contiguous, as they belong to one
    run, and they hold bfloat16. run: the run of the first cell"""
    return not is_scaled(cells) and end <= run[RUN_BEGIN] + run[RUN_LENGTH]


@compiled_fast
def find_places(run, position, count, of_item, of_next, cell_bytes, places):
    """Finds where the cells of `count` positions lie, so that they can be prefetched.

    places[i]: how many bytes after the first key of the cache the key of `position` + i lies. Its value lies
    as far after the first value. Positions after the item's end are those of the next item.

    run: the run of the position, or an earlier one
    of_item: the item's end and the first cell of its KV head
    of_next: the same for the next item, then the run of its first key and that key's position
    """
    end, head_cell = of_item
    next_end, next_head_cell, next_run, next_begin = of_next
    i = 0
    while i < count:
        at = position + i
        if at < end:
            run = find_run(run, at)
            some = min(end, run[RUN_BEGIN] + run[RUN_LENGTH]) - at
            cell = head_cell + run[RUN_CELL] + at - run[RUN_BEGIN]
        else:
            at = min(next_begin + at - end, next_end - 1)
            next_run = find_run(next_run, at)
            some = min(next_end, next_run[RUN_BEGIN] + next_run[RUN_LENGTH]) - at
            cell = next_head_cell + next_run[RUN_CELL] + at - next_run[RUN_BEGIN]
        some = min(some, count - i)
        for j in range(some):
            places[i + j] = (cell + j) * cell_bytes
        i += some


@compiled_fast
def prefetch_cells_at(places, count, cell_bytes, keys, values):
    """Prefetches `count` keys and values.

    places: how many bytes after the first key, and the first value, each of them lies
    keys, values: the addresses of the first key and the first value of the cache
    """
    for i in range(count):
        for line in range(0, cell_bytes, LINE_BYTES):
            prefetch(keys, places[i] + line)
            prefetch(values, places[i] + line)


@compiled_fast
def some_keys(run, begin, count, end, head_keys, empty, cell, half, copied, scales):
    """Returns a pointer to `count` keys from position `begin` on, and the distance from one key to the next.

    Both are in words of two bfloat16 elements.

    Keys that lie side by side are read in the cache, even those from `end` on. Others are copied, with the
    cell `empty` in place of those from `end` on.

    head_keys: the address of the cache's keys, where the head's cells begin, and a value of their type
    scales: receives the factors of the keys if their cells are scaled
    """
    address, first, stored = head_keys
    cells = shift(pointer(address, stored), first)
    run = find_run(run, begin)
    place = (run[RUN_CELL] + begin - run[RUN_BEGIN]) * cell
    if can_be_read_in_place(run, begin + count, cells):
        return shift(pointer(address, np.uint32(0)), (first + place) // 2), cell // 2
    for t in range(count):
        key = empty
        if begin + t < end:
            run = find_run(run, begin + t)
            key = shift(cells, (run[RUN_CELL] + begin + t - run[RUN_BEGIN]) * cell)
        to = shift(copied, t * half)
        for w in range(half):
            to[w] = pair_at(key, w)
        if is_scaled(key):
            scales[t] = read_scale(key, 2 * half)
    return copied, half


@compiled_fast
def interleave(run, begin, count, end, head_values, empty, cell, half, values, scales):
    """Copies `count` values from position `begin` on. The elements of two neighbouring values alternate.

    The cell `empty` takes the place of values from `end` on.

    head_values: the head's cells
    values: bfloat16 [count // 2, 2 * half, 2]
    scales: receives the factors of the values if their cells are scaled
    """
    for t in range(0, count, 2):
        value, next_value = empty, empty
        if begin + t < end:
            run = find_run(run, begin + t)
            value = shift(head_values, (run[RUN_CELL] + begin + t - run[RUN_BEGIN]) * cell)
        if begin + t + 1 < end:
            run = find_run(run, begin + t + 1)
            next_value = shift(head_values, (run[RUN_CELL] + begin + t + 1 - run[RUN_BEGIN]) * cell)
        pair = shift(values, t * half)
        for d in range(2 * half):
            pair[d] = bfloat16_at(value, d) | bfloat16_at(next_value, d) << np.uint32(16)
        if is_scaled(value):
            scales[t] = read_scale(value, 2 * half)
            scales[t + 1] = read_scale(next_value, 2 * half)
