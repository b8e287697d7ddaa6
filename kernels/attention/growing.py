"""Tables of attention for rows in decode, extended by one token for each step."""

from collections.abc import Callable, Sequence

import numpy as np

from ..pages.segments import Segments
from .plan import BEGIN, END, POSITION, UNLIMITED
from .runs import RUN_CELL, RUN_LENGTH, Runs

NewPage = tuple[int, int]
"""a row, and the page that it writes to from this step on"""


class GrowingRows:
    """Rows with one query token each, whose keys no window hides."""

    def __init__(
        self,
        items: np.ndarray,
        runs: Runs,
        lengths: np.ndarray,
        page_size: int,
        segments: Segments,
        split: Callable[[int], int],
    ) -> None:
        """items: see `ItemPlan.items`; lengths: of the rows, in tokens; split: the most keys of an item, by
        the longest row's tokens"""
        self._items, self._runs = items, runs
        of_rows = items[:, POSITION] != UNLIMITED
        self._row_items = np.flatnonzero(of_rows)
        self._last_items = np.flatnonzero(of_rows & (items[:, POSITION] + 1 == items[:, END]))
        self._last_runs = runs.ends - 1
        self._lengths = lengths.astype(np.int64)
        self._longest = int(lengths.max())
        self._page_size, self._segments, self._split = page_size, segments, split

    def grow(self, pages: Sequence[NewPage]) -> bool:
        """Adds a token to each row. False if a plan of the longer rows would have other items or no place for
        their runs; then this object must not be used again."""
        before, after = self._split(self._longest), self._split(self._longest + 1)
        are_whole = before >= self._longest and after > self._longest
        last = self._last_items
        if not are_whole and (before != after or self._longest_last_item() >= after):
            return False
        table = self._runs.table
        table[self._last_runs, RUN_LENGTH] += 1
        for row, page in pages:
            if not self._begin_page(row, self._segments.first_cell(page * self._page_size)):
                return False
        self._items[last, END] += 1
        self._items[self._row_items, POSITION] += 1
        self._lengths += 1
        self._longest += 1
        return True

    def _begin_page(self, row: int, cell: int) -> bool:
        """Moves the key that was just added to a row to the first cell of another page."""
        last = self._runs.table[self._last_runs[row]]
        if last[RUN_CELL] + last[RUN_LENGTH] == cell + 1:
            return True  # the page follows the one before
        last[RUN_LENGTH] -= 1
        self._last_runs[row] += 1
        return self._runs.append(row, int(self._lengths[row]), cell)

    def _longest_last_item(self) -> int:
        items = self._items[self._last_items]
        return int((items[:, END] - items[:, BEGIN]).max())
