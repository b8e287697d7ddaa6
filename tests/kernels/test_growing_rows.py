"""Tables of attention that grow with their rows, against tables made for the longer rows."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from arbora.kernels.attention import FULL_REACH, AttentionBatch, Reach, cpu
from arbora.kernels.attention import items as column
from arbora.kernels.attention.batch import Group
from arbora.kernels.attention.cpu import CpuAttention
from arbora.kernels.attention.plan import ROW
from segmented import segmented

PAGE, HEAD_DIM = 4, 32
ADDRESSES = {
    column.ITEMS,
    column.ITEM_RUNS,
    column.RUNS,
    column.PARTIAL_OUT,
    column.PARTIAL_SUM,
    column.MERGES,
}
"""arguments that differ between plans of the same rows"""


class Growing:
    """Rows whose pages are consecutive or not, by chance."""

    def __init__(
        self, lengths: list[int], groups: Sequence[Group], kv_heads: int, invariant: bool, segment: int = 1
    ) -> None:
        self._random, self._next = random.Random(sum(lengths)), 0
        self._groups, self._invariant = groups, invariant
        self._q = torch.empty(0, 2 * kv_heads, HEAD_DIM)
        self._kv = segmented(torch.empty(2, kv_heads, 2 * segment, PAGE, HEAD_DIM), segment)
        self.lengths, self.tables = lengths, list[list[int]]()
        for row, length in enumerate(lengths):
            common = self._shared_pages(row)
            self.tables.append(common + [self.page() for _ in range(-(-length // PAGE) - len(common))])

    def _shared_pages(self, row: int) -> list[int]:
        """The pages that a row has in common with rows before it."""
        shared = [(keys, first) for first, rows, keys in self._groups if first < row < first + rows]
        keys, first = max(shared, default=(0, 0))
        return self.tables[first][: keys // PAGE] if shared else []

    def page(self) -> int:
        self._next += self._random.choice([1, 1, 3])
        return self._next

    def plan(self) -> CpuAttention:
        tables = [np.array(table, np.int32) for table in self.tables]
        ones = [1] * len(self.lengths)
        batch = AttentionBatch.build(ones, self.lengths, tables, PAGE, torch.device("cpu"), self._groups)
        return CpuAttention(batch, self._q, self._kv, FULL_REACH, self._invariant)

    def lengthen(self) -> list[tuple[int, int]]:
        """Adds a token to each row; returns the new pages."""
        new = []
        for row, length in enumerate(self.lengths):
            if length % PAGE == 0:
                self.tables[row].append(self.page())
                new.append((row, self.tables[row][-1]))
        self.lengths = [length + 1 for length in self.lengths]
        return new


def described(plan: CpuAttention) -> tuple[object, ...]:
    """All that kernels read of a plan. Rows may have more or fewer free places for runs."""
    runs = plan._runs
    rows = [runs.table[start:end].tolist() for start, end in zip(runs.starts, runs.ends, strict=True)]
    places = plan._item_runs - plan._runs.starts[plan._items.items[:, ROW]]
    fixed = {at: value for at, value in enumerate(plan._arguments) if at not in ADDRESSES}
    items = plan._items
    return items.items.tolist(), items.merges.tolist(), items.partials, rows, places.tolist(), fixed


@pytest.mark.parametrize("segment", [1, 3])
@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize(
    "lengths, groups, kv_heads",
    [
        ([1], [], 1),
        ([37], [], 8),
        ([3, 30, 14], [], 2),
        ([20, 27], [(0, 2, 12)], 1),
        ([41, 50, 33], [(0, 3, 32)], 8),
        ([40, 61, 50, 47, 7, 44, 21], [(0, 4, 16), (1, 3, 32), (2, 2, 44), (5, 2, 20)], 2),
    ],
)
def test_grown_tables_are_those_of_the_longer_rows(
    lengths: list[int],
    groups: list[Group],
    kv_heads: int,
    invariant: bool,
    segment: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "MIN_SPLIT", 16)
    monkeypatch.setattr(cpu, "INVARIANT_SPLIT", 16)
    rows = Growing(lengths, groups, kv_heads, invariant, segment)
    plan = rows.plan()
    growing, grown = plan.growing(), 0
    for _ in range(80):
        new = rows.lengthen()
        fresh = rows.plan()
        assert growing is not None
        if growing.grow(new):
            grown += 1
            assert described(plan) == described(fresh)
        else:
            plan, growing = fresh, fresh.growing()
    assert grown >= 40


def test_rows_with_windows_or_chunks_do_not_grow() -> None:
    rows = Growing([9], [], 1, False)
    batch = AttentionBatch.build([2], [9], [np.arange(3, dtype=np.int32)], PAGE, torch.device("cpu"))
    assert CpuAttention(batch, rows._q, rows._kv, FULL_REACH, False).growing() is None
    one = AttentionBatch.build([1], [9], [np.arange(3, dtype=np.int32)], PAGE, torch.device("cpu"))
    assert CpuAttention(one, rows._q, rows._kv, Reach(5), False).growing() is None
