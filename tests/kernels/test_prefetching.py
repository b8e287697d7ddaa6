"""Attention prefetches each cell of an item once, and then the first cells of the next item."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from arbora.kernels.attention import runs as attention_runs
from hypothesis import given
from hypothesis import strategies as st

CELL = 3  # elements
NEXT = 1_000_000  # where the next item's cells begin


@dataclass(frozen=True)
class Pointer:
    """A numba pointer: to the table of runs, which ends, or to cells, whose contents are never read."""

    start: int
    table: tuple[int, ...] = ()

    def __getitem__(self, index: int) -> int:
        assert self.start + index < len(self.table), "the table of runs has ended"
        return self.table[self.start + index]


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    ahead=st.sampled_from([24, 48]),
    step=st.sampled_from([1, 3, 4]),
    data=st.data(),
)
def test_cells_are_prefetched_once_across_runs_and_then_those_of_the_next_item(
    lengths: list[int], ahead: int, step: int, data: st.DataObject
) -> None:
    """A kernel takes `step` keys at a time."""
    begin = data.draw(st.integers(0, sum(lengths) - 1))
    end = data.draw(st.integers(begin + 1, sum(lengths)))
    table: list[int] = []
    cells: list[int] = []
    for length in lengths:
        first = 1000 * len(cells)  # runs are far from each other
        table += (len(cells), first, length)
        cells += range(first, first + length)
    prefetched: Counter[int] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_runs, "shift", lambda start, count: Pointer(start.start + count, start.table))
        patch.setattr(
            attention_runs, "prefetch", lambda start, index: prefetched.update([start.start + index])
        )
        patch.setattr(attention_runs, "line_elements", lambda _: CELL)
        patch.setattr(attention_runs, "find_run", attention_runs.find_run.py_func)
        prefetch_cells: Any = attention_runs.prefetch_cells
        source = end, Pointer(0), Pointer(NEXT * CELL), CELL
        run = Pointer(0, tuple(table))
        for position in range(begin, end, step):
            some = min(step, end - position)
            run = prefetch_cells.py_func(run, position + ahead, some, source)
    after_end = range(max(0, begin + ahead - end), ahead)
    expected = [*cells[begin + ahead : end], *(NEXT + number for number in after_end)]
    assert prefetched == Counter(cell * CELL for cell in expected)
