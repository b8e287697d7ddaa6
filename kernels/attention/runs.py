"""Runs: keys that are contiguous in the cache, found by coalescing consecutive pages.

The cells that attention reads next are prefetched across the ends of runs and items.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..common.jit import compiled_fast
from ..common.numba_tools import prefetch, shift
from ..pages.cells_cpu import is_scaled, line_elements
from ..pages.segments import Segments
from .plan import BEGIN, ROW

RUN_BEGIN, RUN_CELL, RUN_LENGTH, RUN_COLUMNS = range(4)
"""Columns of a run: position of the first key, its cell for the first head, number of keys."""

AHEAD = 24
"""How many keys or values ahead of the current one are prefetched: the fastest number from 12 to 32. An int8
cell has half the bytes, so twice as many are prefetched there."""


@dataclass(frozen=True)
class Runs:
    table: np.ndarray
    """int64 [runs, RUN_COLUMNS], those of one row after the other"""
    starts: np.ndarray
    """int64 [rows]: where the runs of each row begin"""

    @staticmethod
    def find(
        page_tables: Sequence[NDArray[np.int32]],
        lengths: NDArray[np.int64],
        page_size: int,
        segments: Segments,
    ) -> "Runs":
        """The runs of rows with these page tables. lengths: [rows], in tokens"""
        counts = -(-lengths // page_size)
        used = [table[:count] for table, count in zip(page_tables, counts.tolist(), strict=True)]
        tables = np.concatenate(used) if used else np.empty(0, np.int32)
        return Runs(*_coalesce(tables, lengths, counts, page_size, segments.tokens, segments.segment))

    def of_items(self, items: np.ndarray) -> np.ndarray:
        """The run of each work item's first key, int64 [items]."""
        runs = np.empty(len(items), np.int64)
        find_first_runs(items, self.table, self.starts, runs)
        return runs


@compiled_fast
def _coalesce(tables, lengths, pages, page_size, segment_tokens, segment_cells):
    rows = len(lengths)
    runs = np.empty((len(tables), RUN_COLUMNS), np.int64)
    starts = np.empty(rows, np.int64)
    found = 0
    page = 0
    last_cell = np.int64(0)
    for row in range(rows):
        starts[row] = found
        for index in range(pages[row]):
            keys = min(page_size, lengths[row] - index * page_size)
            place = np.int64(tables[page]) * page_size
            cell = place // segment_tokens * segment_cells + place % segment_tokens
            if index > 0 and cell == last_cell + page_size:
                runs[found - 1, RUN_LENGTH] += keys
            else:
                runs[found] = (index * page_size, cell, keys)
                found += 1
            last_cell = cell
            page += 1
    return runs[:found].copy(), starts


@compiled_fast
def find_first_runs(items, runs, starts, first):
    """Writes the run of each item's first key."""
    for i in range(len(items)):
        run = starts[items[i, ROW]]
        while runs[run, RUN_BEGIN] + runs[run, RUN_LENGTH] <= items[i, BEGIN]:
            run += 1
        first[i] = run


@compiled_fast
def find_run(run, position):
    """The run of a position, which is this run or a later one."""
    while run[RUN_BEGIN] + run[RUN_LENGTH] <= position:
        run = shift(run, RUN_COLUMNS)
    return run


@compiled_fast
def prefetch_distance(cells):
    """`AHEAD` for cells of this type."""
    return 2 * AHEAD if is_scaled(cells) else AHEAD


@compiled_fast
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
            run = find_run(run, position)
            some = min(count, min(end, run[RUN_BEGIN] + run[RUN_LENGTH]) - position)
            place = shift(head_cells, (run[RUN_CELL] + position - run[RUN_BEGIN]) * cell)
        else:
            place = shift(next_cells, (position - end) * cell)
        for element in range(0, some * cell, line_elements(place)):
            prefetch(place, element)
        position += some
        count -= some
    return run
