# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Runs: keys that are contiguous in the cache, found by coalescing consecutive pages."""

from dataclasses import dataclass

import numpy as np

from ..common.numba_tools import compiled
from .batch import AttentionBatch
from .plan import BEGIN, ROW

RUN_BEGIN, RUN_SLOT, RUN_LENGTH, RUN_COLUMNS = range(4)
"""Columns of a run: position of the first key, slot of that key in the cache, number of keys."""


@dataclass(frozen=True)
class Runs:
    table: np.ndarray
    """int64 [runs, RUN_COLUMNS]"""
    offsets: np.ndarray
    """int64 [rows + 1]: the runs of row r are table[offsets[r] : offsets[r + 1]]"""

    @staticmethod
    def find(batch: AttentionBatch) -> "Runs":
        pages = batch.page_counts()
        return Runs(*_coalesce(batch.joined_tables(), batch.kv_lengths, pages, batch.page_size))

    def of_row(self, row: int) -> np.ndarray:
        return self.table[self.offsets[row] : self.offsets[row + 1]]

    def of_items(self, items: np.ndarray) -> np.ndarray:
        """The run of each work item's first key, int64 [items]."""
        runs: np.ndarray = _first_runs(items, self.table, self.offsets)
        return runs


@compiled
def _coalesce(tables, lengths, pages, page_size):
    rows = len(lengths)
    runs = np.empty((len(tables), RUN_COLUMNS), np.int64)
    offsets = np.empty(rows + 1, np.int64)
    found = 0
    page = 0
    for row in range(rows):
        offsets[row] = found
        for index in range(pages[row]):
            keys = min(page_size, lengths[row] - index * page_size)
            if index > 0 and tables[page] == tables[page - 1] + 1:
                runs[found - 1, RUN_LENGTH] += keys
            else:
                runs[found] = (index * page_size, np.int64(tables[page]) * page_size, keys)
                found += 1
            page += 1
    offsets[rows] = found
    return runs[:found].copy(), offsets


@compiled
def _first_runs(items, runs, offsets):
    first = np.empty(len(items), np.int64)
    for i in range(len(items)):
        run = offsets[items[i, ROW]]
        while runs[run, RUN_BEGIN] + runs[run, RUN_LENGTH] <= items[i, BEGIN]:
            run += 1
        first[i] = run
    return first
