"""Attention planned for later steps of the same rows, against new plans."""

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
from arbora.kernels.attention.plan import BEGIN, COLUMNS, ROW
from arbora.kernels.attention.runs import RUN_BEGIN, RUN_CELL, RUN_LENGTH
from segmented import segmented

PAGE, HEAD_DIM = 4, 32
FIXED = sorted(set(range(column.ARGUMENTS)) - set(cpu.OF_STEP))
NUMBERS = (column.ITEM_COUNT, column.MERGE_COUNT, column.REACH)


class Rows:
    """Rows whose pages are consecutive or not, by chance, in steps of one token or more."""

    def __init__(
        self,
        lengths: list[int],
        groups: Sequence[Group],
        kv_heads: int,
        invariant: bool,
        segment: int,
        reach: Reach = FULL_REACH,
    ) -> None:
        self.random, self._next = random.Random(sum(lengths)), 0
        self._groups, self._invariant, self._reach = tuple(groups), invariant, reach
        self._q = torch.empty(0, 2 * kv_heads, HEAD_DIM)
        self._kv = segmented(torch.empty(2, kv_heads, 2 * segment, PAGE, HEAD_DIM), segment)
        self.queries, self.lengths = [1] * len(lengths), lengths
        self.tables = list[list[int]]()
        for row, length in enumerate(lengths):
            common = self._shared_pages(row)
            self.tables.append(common + [self._page() for _ in range(-(-length // PAGE) - len(common))])

    def _shared_pages(self, row: int) -> list[int]:
        """The pages that a row has in common with rows before it."""
        shared = [(keys, first) for first, rows, keys in self._groups if first < row < first + rows]
        keys, first = max(shared, default=(0, 0))
        return self.tables[first][: keys // PAGE] if shared else []

    def _page(self) -> int:
        self._next += self.random.choice([1, 1, 3])
        return self._next

    def arrays(self) -> list[np.ndarray]:
        return [np.array(table, np.int32) for table in self.tables]

    def plan(self) -> CpuAttention:
        tables, device = self.arrays(), torch.device("cpu")
        batch = AttentionBatch.build(self.queries, self.lengths, tables, PAGE, device, self._groups)
        reach = self._reach.within(max(self.lengths))
        return CpuAttention(batch, self._q, self._kv, reach, self._invariant)

    def take_step(self, accepted: Sequence[int], drafts: Sequence[int]) -> None:
        """Keeps some tokens of the last step, and adds one token and some drafts to each row."""
        known = [length - queries for length, queries in zip(self.lengths, self.queries, strict=True)]
        self.queries = [1 + count for count in drafts]
        self.lengths = [sum(each) for each in zip(known, accepted, self.queries, strict=True)]
        for table, length in zip(self.tables, self.lengths, strict=True):
            table += [self._page() for _ in range(-(-length // PAGE) - len(table))]

    def plan_later(self, plan: CpuAttention) -> None:
        lengths = np.array(self.lengths, np.int64)
        if plan.lacks_pages(lengths):
            plan.set_pages(self.arrays())
        queries, longest = np.array(self.queries, np.int64), max(self.lengths)
        plan.plan_step(queries, lengths, longest, self._groups, self._reach)

    def take_random_steps(self, plan: CpuAttention, steps: int, most: int = 9) -> None:
        """Compares the plan with a new one after each step."""
        for _ in range(steps):
            accepted = [self.random.randint(1, count) for count in self.queries]
            drafts = [self.random.choice([0, self.random.randint(0, most)]) for _ in self.queries]
            self.take_step(accepted, drafts)
            self.plan_later(plan)
            self.assert_same(plan, self.plan())

    def assert_same(self, plan: CpuAttention, fresh: CpuAttention) -> None:
        """Checks all that kernels read, except addresses."""
        items, merges, _ = (
            read(plan, name, count) for name, count in (("items", 0), ("merges", 1), ("item_runs", 0))
        )
        assert items.tolist() == fresh._items.items.tolist()
        assert merges.tolist() == fresh._items.merges.tolist()
        assert len(plan._partial) == len(plan._partial_sum) >= fresh._items.partials
        for at in (*FIXED, *NUMBERS):
            assert plan._arguments[at] == fresh._arguments[at]
        assert self.cells(plan) == self.cells(fresh)
        for item, run in zip(items, read(plan, "item_runs", 0), strict=True):
            begin, length = plan._runs.table[run, [RUN_BEGIN, RUN_LENGTH]]
            assert begin <= item[BEGIN] < begin + length and run >= plan._runs.starts[item[ROW]]

    def cells(self, plan: CpuAttention) -> list[list[int]]:
        """The cells of each row's keys, in order."""
        ends = [*plan._runs.starts[1:], len(plan._runs.table)]
        found = []
        for start, end, length in zip(plan._runs.starts, ends, self.lengths, strict=True):
            runs = plan._runs.table[start:end]
            cells = [run[RUN_CELL] + at for run in runs for at in range(run[RUN_LENGTH])]
            found.append(cells[:length])
        return found


def read(plan: CpuAttention, name: str, count: int) -> np.ndarray:
    """The memory that the arguments of a later step give to kernels."""
    array: np.ndarray = getattr(plan._later, name)
    address = {"items": column.ITEMS, "merges": column.MERGES, "item_runs": column.ITEM_RUNS}[name]
    assert plan._arguments[address] == array.ctypes.data
    return array[: plan._arguments[NUMBERS[count]]]


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
def test_a_later_step_has_the_items_of_a_new_plan(
    lengths: list[int],
    groups: list[Group],
    kv_heads: int,
    invariant: bool,
    segment: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "MIN_SPLIT", 16)
    monkeypatch.setattr(cpu, "MIN_SPLIT_OF_MANY", 16)
    monkeypatch.setattr(cpu, "INVARIANT_SPLIT", 16)
    rows = Rows(lengths, groups, kv_heads, invariant, segment)
    rows.take_random_steps(rows.plan(), 60)


@pytest.mark.parametrize("reach", [Reach(window=12), Reach(chunk=16)])
@pytest.mark.parametrize("invariant", [False, True])
def test_windows_and_chunks_begin_to_hide_keys_as_in_a_new_plan(
    reach: Reach, invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "INVARIANT_SPLIT", 16)
    rows = Rows([3, 9, 5], [], 2, invariant, 1, reach)
    rows.take_random_steps(rows.plan(), 30)


def test_the_memory_of_items_rarely_moves() -> None:
    rows = Rows([90, 14], [], 1, False, 1)
    plan, addresses = rows.plan(), set()
    for drafts in [[0, 0], [12, 3], *[[4, 1], [0, 0], [0, 9]] * 20]:
        rows.take_step([1, 1], drafts)
        rows.plan_later(plan)
        addresses.add(plan._arguments[column.ITEMS])
    assert len(addresses) <= 3
    assert plan._later.items.shape[1] == COLUMNS


def test_a_copy_may_plan_other_steps() -> None:
    rows = Rows([20, 30], [], 2, False, 1)
    plan = rows.plan()
    before = plan.step_arguments()
    other = plan.copy()
    rows.take_random_steps(other, 10)
    assert plan.step_arguments() == before
