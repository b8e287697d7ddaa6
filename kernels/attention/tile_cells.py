"""The cached keys and values of an item in the order in which tiles multiply them (see `tiles`)."""

import numpy as np

from ..common.jit import compiled_fast
from ..common.numba_tools import pointer, prefetch, shift
from ..pages.cells_cpu import LINE_BYTES, bfloat16_at, is_scaled, pair_at, read_scale
from .runs import RUN_BEGIN, RUN_CELL, RUN_COLUMNS, RUN_LENGTH


@compiled_fast
def find_run(run, position):
    """The run of a position, which is this run or a later one."""
    while run[RUN_BEGIN] + run[RUN_LENGTH] <= position:
        run = shift(run, RUN_COLUMNS)
    return run


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
