"""Work items of the later steps of the same rows, in memory that is used again."""

import numpy as np
from numpy.typing import NDArray

from ..common.jit import compiled_fast
from .batch import Group
from .plan import COLUMNS, ItemSizes, count_places, cut_into, lay_out
from .runs import Runs, find_first_runs

SPARE = 2
"""Factor of the memory that is allocated when it does not suffice."""


class LaterItems:
    """Plans items one step after another. The memory of the items seldom moves, so the arguments of recorded
    kernels seldom change. A step overwrites the items of the step before."""

    def __init__(self) -> None:
        self._allocate(0, 0)

    def plan(
        self,
        queries: NDArray[np.int64],
        lengths: NDArray[np.int64],
        groups: tuple[Group, ...],
        sizes: ItemSizes,
        runs: Runs,
    ) -> tuple[int, int, int]:
        """Plans the items of rows (see `plan_items`). Returns the numbers of items, merges and partial
        results."""
        rows = queries, lengths, lay_out(groups), np.ones(len(lengths), np.bool_), sizes
        of_runs = runs.table, runs.starts
        found: tuple[int, int, int] = _plan(*rows, *of_runs, self.items, self.merges, self.item_runs)
        if found[0] < 0:
            self._allocate(-found[0] * SPARE, found[1] * SPARE)
            found = _plan(*rows, *of_runs, self.items, self.merges, self.item_runs)
        return found

    def _allocate(self, items: int, merges: int) -> None:
        self.items = np.empty((items, COLUMNS), np.int64)
        """[places, COLUMNS]: the items, and memory for more"""
        self.merges = np.empty((merges, 3), np.int64)
        self.item_runs = np.empty(items, np.int64)
        """[places]: the run of each item's first key"""


@compiled_fast
def _plan(queries, lengths, groups, covered, sizes, table, starts, items, merges, item_runs):
    """Returns the numbers of items, merges and partial results. If the items or merges have too little
    memory, nothing is written, and the first is the negative number of items that need it, the second that
    of merges."""
    most_items, most_merges = count_places(queries, lengths, groups, covered, sizes)
    if most_items > len(items) or most_merges > len(merges):
        return -most_items, most_merges, 0
    made, merged, partials = cut_into(queries, lengths, groups, covered, sizes, items, merges)
    find_first_runs(items[:made], table, starts, item_runs)
    return made, merged, partials
