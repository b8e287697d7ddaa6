# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Runs: keys that are contiguous in the cache, found by coalescing consecutive pages."""

from dataclasses import dataclass

import numpy as np

from ..common.numba_tools import compiled
from .batch import AttentionBatch
from .plan import BEGIN, ROW

RUN_BEGIN, RUN_SLOT, RUN_LENGTH, RUN_COLUMNS = range(4)
"""Columns of a run: position of the first key, slot of that key in the cache, number of keys."""

SPARE = 4
"""Runs that a row can gain."""


@dataclass(frozen=True)
class Runs:
    table: np.ndarray
    """int64 [places, RUN_COLUMNS]; after the runs of each row, `SPARE` places are free"""
    starts: np.ndarray
    ends: np.ndarray
    """int64 [rows]: the runs of row r are table[starts[r] : ends[r]]"""

    @staticmethod
    def find(batch: AttentionBatch) -> "Runs":
        pages = batch.page_counts()
        return Runs(*_coalesce(batch.joined_tables(), batch.kv_lengths, pages, batch.page_size))

    def of_row(self, row: int) -> np.ndarray:
        return self.table[self.starts[row] : self.ends[row]]

    def append(self, row: int, position: int, slot: int) -> bool:
        """Adds a run of one key at a row's end. False if the row has no free place."""
        end = int(self.ends[row])
        following = int(self.starts[row + 1]) if row + 1 < len(self.starts) else len(self.table)
        if end == following:
            return False
        self.table[end] = (position, slot, 1)
        self.ends[row] += 1
        return True

    def of_items(self, items: np.ndarray) -> np.ndarray:
        """The run of each work item's first key, int64 [items]."""
        runs: np.ndarray = _first_runs(items, self.table, self.starts)
        return runs


@compiled
def _coalesce(tables, lengths, pages, page_size):
    rows = len(lengths)
    runs = np.empty((len(tables) + SPARE * rows, RUN_COLUMNS), np.int64)
    starts, ends = np.empty(rows, np.int64), np.empty(rows, np.int64)
    found = 0
    page = 0
    for row in range(rows):
        starts[row] = found
        for index in range(pages[row]):
            keys = min(page_size, lengths[row] - index * page_size)
            if index > 0 and tables[page] == tables[page - 1] + 1:
                runs[found - 1, RUN_LENGTH] += keys
            else:
                runs[found] = (index * page_size, np.int64(tables[page]) * page_size, keys)
                found += 1
            page += 1
        ends[row] = found
        found += SPARE
    return runs[:found].copy(), starts, ends


@compiled
def _first_runs(items, runs, starts):
    first = np.empty(len(items), np.int64)
    for i in range(len(items)):
        run = starts[items[i, ROW]]
        while runs[run, RUN_BEGIN] + runs[run, RUN_LENGTH] <= items[i, BEGIN]:
            run += 1
        first[i] = run
    return first
