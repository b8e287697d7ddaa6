"""Checks that a step's saves and restores may run beside the steps in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from arbora.radix_cache import Reach
from arbora.runtime.messages import StepPlan

Page = tuple[int, int]
"""group of layers and number of the page"""


class _Pages(NamedTuple):
    read: set[Page]
    written: set[Page]


class PagesInFlight:
    def __init__(self, page_size: int, reaches: Sequence[Reach]) -> None:
        self._page_size = page_size
        self._reaches = [None, *reaches]  # of each group
        self._tables: dict[int, list[list[int]]] = {}  # of each group by slot
        self._lengths: dict[int, int] = {}  # by slot
        self._steps: dict[int, _Pages] = {}  # by step in flight

    def begin(self, plan: StepPlan) -> None:
        read: set[Page] = set().union(*(step.read for step in self._steps.values()))
        written: set[Page] = set().union(*(step.written for step in self._steps.values()))
        for save in plan.saves:
            saved = {(save.group, page) for page in _ids(save.pages)}
            assert written.isdisjoint(saved), "a page is saved that a running step writes"
        restored = {(restore.group, page) for restore in plan.restores for page in _ids(restore.pages)}
        assert (read | written).isdisjoint(restored), "a page is restored that a running step uses"
        self._steps[plan.step] = self._of(plan, restored)

    def end(self, step: int) -> None:
        del self._steps[step]

    def _of(self, plan: StepPlan, restored: set[Page]) -> _Pages:
        for setup in plan.setups:
            self._tables[setup.slot] = [[] for _ in self._reaches]
        pages = _Pages({(copy.group, copy.source) for copy in plan.copies}, restored)
        pages.written.update((copy.group, copy.destination) for copy in plan.copies)
        for row in plan.rows:
            start = row.start if row.tokens else self._lengths[row.slot]
            self._lengths[row.slot] = start + (len(row.tokens) // 4 or row.samples)
            end = -(-self._lengths[row.slot] // self._page_size)
            new_pages = map(_ids, (row.new_pages, *row.new_window_pages))
            groups = zip(self._reaches, self._tables[row.slot], new_pages, strict=True)
            for group, (reach, table, new) in enumerate(groups):
                table += new
                first = 0 if reach is None else reach.find_first(start) // self._page_size
                pages.read.update((group, page) for page in table[first:end])
                pages.written.update((group, page) for page in table[start // self._page_size : end])
        return pages


def _ids(packed: bytes) -> list[int]:
    ids: list[int] = np.frombuffer(packed, np.int32).tolist()
    return ids
