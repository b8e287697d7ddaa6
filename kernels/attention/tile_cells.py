# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""The cached keys and values of an item in the order in which tiles multiply them (see `tiles`)."""

import numpy as np

from ..common.numba_tools import compiled, pointer, prefetch, shifted
from ..pages.cells_cpu import bfloat16_at, is_scaled, line_elements, pair_at, scale_of
from .runs import RUN_BEGIN, RUN_CELL, RUN_COLUMNS, RUN_LENGTH


@compiled
def run_of(run, position):
    """The run of a position, which is this run or a later one."""
    while run[RUN_BEGIN] + run[RUN_LENGTH] <= position:
        run = shifted(run, RUN_COLUMNS)
    return run


@compiled
def some_keys(run, begin, count, end, head_keys, empty, cell, half, copied, scales):
    """`count` keys from `begin` on as words of bfloat16, and the number of words from one key to the next.

    Keys that lie side by side are read in the cache, also those from `end` on. Others are copied, with the
    cell `empty` in place of the keys from `end` on.

    head_keys: the address of the cache's keys, where the head's cells begin, and a value of their type
    scales: receives the factors of the keys if their cells are scaled
    """
    address, first, stored = head_keys
    cells = shifted(pointer(address, stored), first)
    run = run_of(run, begin)
    place = (run[RUN_CELL] + begin - run[RUN_BEGIN]) * cell
    if not is_scaled(cells) and begin + count <= run[RUN_BEGIN] + run[RUN_LENGTH]:
        return shifted(pointer(address, np.uint32(0)), (first + place) // 2), cell // 2
    for t in range(count):
        key = empty
        if begin + t < end:
            run = run_of(run, begin + t)
            key = shifted(cells, (run[RUN_CELL] + begin + t - run[RUN_BEGIN]) * cell)
        to = shifted(copied, t * half)
        for w in range(half):
            to[w] = pair_at(key, w)
        if is_scaled(key):
            scales[t] = scale_of(key, 2 * half)
    return copied, half


@compiled
def interleave(run, begin, end, padded, head_values, empty, cell, half, values, scales):
    """Copies values [begin, end), and the cell `empty` from `end` on, to pairs of `padded` values.

    values: bfloat16 [padded // 2, 2 * half, 2]
    scales: receives the factors of the values if their cells are scaled
    """
    for t in range(0, padded, 2):
        value, next_value = empty, empty
        if begin + t < end:
            run = run_of(run, begin + t)
            value = shifted(head_values, (run[RUN_CELL] + begin + t - run[RUN_BEGIN]) * cell)
        if begin + t + 1 < end:
            run = run_of(run, begin + t + 1)
            next_value = shifted(head_values, (run[RUN_CELL] + begin + t + 1 - run[RUN_BEGIN]) * cell)
        pair = shifted(values, t * half)
        for d in range(2 * half):
            pair[d] = bfloat16_at(value, d) | bfloat16_at(next_value, d) << np.uint32(16)
        if is_scaled(value):
            scales[t] = scale_of(value, 2 * half)
            scales[t + 1] = scale_of(next_value, 2 * half)


@compiled
def prefetch_some(run, begin, end, head_keys, head_values, cell):
    """Prefetches the keys and values [begin, end). head_keys: as in `some_keys`"""
    address, first, stored = head_keys
    cells = shifted(pointer(address, stored), first)
    for t in range(begin, end):
        run = run_of(run, t)
        place = (run[RUN_CELL] + t - run[RUN_BEGIN]) * cell
        for i in range(0, cell, line_elements(cells)):
            prefetch(cells, place + i)
            prefetch(head_values, place + i)
