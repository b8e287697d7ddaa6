"""Prefetches the cells that attention reads next, across the ends of runs and items."""

from ..common.numba_tools import compiled, prefetch, shifted
from ..pages.cells_cpu import is_scaled, line_elements
from .runs import RUN_BEGIN, RUN_CELL, RUN_COLUMNS, RUN_LENGTH

AHEAD = 24
"""How many keys or values ahead of the current one are prefetched: the fastest number from 12 to 32. An int8
cell has half the bytes, so twice as many are prefetched there."""


@compiled
def ahead_of(cells):
    """`AHEAD` for cells of this type."""
    return 2 * AHEAD if is_scaled(cells) else AHEAD


@compiled
def prefetch_cells(run, position, count, source):
    """Prefetches `count` cells of an item and KV head from `position` on, and in place of those after the
    item's end the first cells of the next item.

    run: the run of `position`, or an earlier one
    source: the item's end, where the head's cells begin in the cache, the next item's first cell, and the
    elements of a cell. The next item's cells are taken to be contiguous: prefetching others is only a waste.
    Returns the last run that was reached.
    """
    end, head_cells, next_cells, cell = source
    while count > 0:
        some = count
        if position < end:
            while run[RUN_BEGIN] + run[RUN_LENGTH] <= position:
                run = shifted(run, RUN_COLUMNS)
            some = min(count, min(end, run[RUN_BEGIN] + run[RUN_LENGTH]) - position)
            place = shifted(head_cells, (run[RUN_CELL] + position - run[RUN_BEGIN]) * cell)
        else:
            place = shifted(next_cells, (position - end) * cell)
        for element in range(0, some * cell, line_elements(place)):
            prefetch(place, element)
        position += some
        count -= some
    return run
