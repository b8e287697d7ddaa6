"""Tables of attention that grow with their rows, against tables made for the longer rows."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from arbora.kernels.attention import AttentionBatch, cpu
from arbora.kernels.attention.cpu import CpuAttention

PAGE, HEAD_DIM = 4, 32


class Growing:
    """Rows whose pages are consecutive or not, by chance."""

    def __init__(self, lengths: list[int], shared: int, kv_heads: int, invariant: bool) -> None:
        self._random, self._next = random.Random(sum(lengths)), 0
        self._shared, self._invariant = shared, invariant
        self._q = torch.empty(0, 2 * kv_heads, HEAD_DIM)
        self._kv = torch.empty(2, kv_heads, 1, PAGE, HEAD_DIM)
        self.lengths, self.tables = lengths, list[list[int]]()
        for length in lengths:
            common = self.tables[0][: shared // PAGE] if self.tables else []
            self.tables.append(common + [self.page() for _ in range(-(-length // PAGE) - len(common))])

    def page(self) -> int:
        self._next += self._random.choice([1, 1, 3])
        return self._next

    def plan(self) -> CpuAttention:
        groups = [(0, len(self.lengths), self._shared)] if self._shared else []
        tables = [np.array(table, np.int32) for table in self.tables]
        ones = [1] * len(self.lengths)
        batch = AttentionBatch.build(ones, self.lengths, tables, PAGE, torch.device("cpu"), groups)
        return CpuAttention(batch, self._q, self._kv, None, self._invariant)

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
    rows = [plan._runs.of_row(row).tolist() for row in range(len(plan._runs.starts))]
    first = [plan._runs.table[run].tolist()[:2] for run in plan._item_runs]
    return plan._items.items.tolist(), plan._items.merges.tolist(), rows, first


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize(
    "lengths, shared, kv_heads",
    [([1], 0, 1), ([37], 0, 8), ([3, 30, 14], 0, 2), ([20, 27], 12, 1), ([41, 50, 33], 32, 8)],
)
def test_grown_tables_are_those_of_the_longer_rows(
    lengths: list[int], shared: int, kv_heads: int, invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "MIN_SPLIT", 16)
    monkeypatch.setattr(cpu, "INVARIANT_SPLIT", 16)
    rows = Growing(lengths, shared, kv_heads, invariant)
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
    rows = Growing([9], 0, 1, False)
    batch = AttentionBatch.build([2], [9], [np.arange(3, dtype=np.int32)], PAGE, torch.device("cpu"))
    assert CpuAttention(batch, rows._q, rows._kv, None, False).growing() is None
    one = AttentionBatch.build([1], [9], [np.arange(3, dtype=np.int32)], PAGE, torch.device("cpu"))
    assert CpuAttention(one, rows._q, rows._kv, 5, False).growing() is None
