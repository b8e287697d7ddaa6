"""Checks that a step's saves and restores may run beside the steps in flight."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from arbora.runtime.messages import StepPlan


class _Pages(NamedTuple):
    read: set[int]
    written: set[int]


class PagesInFlight:
    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._tables: dict[int, list[int]] = {}  # by slot
        self._lengths: dict[int, int] = {}  # by slot
        self._steps: dict[int, _Pages] = {}  # by step in flight

    def begin(self, plan: StepPlan) -> None:
        read: set[int] = set().union(*(step.read for step in self._steps.values()))
        written: set[int] = set().union(*(step.written for step in self._steps.values()))
        for save in plan.saves:
            assert written.isdisjoint(_ids(save.pages)), "a page is saved that a running step writes"
        restored = {page for restore in plan.restores for page in _ids(restore.pages)}
        assert (read | written).isdisjoint(restored), "a page is restored that a running step uses"
        self._steps[plan.step] = self._of(plan, restored)

    def end(self, step: int) -> None:
        del self._steps[step]

    def _of(self, plan: StepPlan, restored: set[int]) -> _Pages:
        for setup in plan.setups:
            self._tables[setup.slot] = []
        pages = _Pages({copy.source for copy in plan.copies}, restored)
        pages.written.update(copy.destination for copy in plan.copies)
        for row in plan.rows:
            table = self._tables[row.slot]
            table += _ids(row.new_pages)
            start = row.start if row.tokens else self._lengths[row.slot]
            self._lengths[row.slot] = start + (len(row.tokens) // 4 or row.samples)
            end = -(-self._lengths[row.slot] // self._page_size)
            pages.read.update(table[:end])
            pages.written.update(table[start // self._page_size : end])
        return pages


def _ids(packed: bytes) -> list[int]:
    ids: list[int] = np.frombuffer(packed, np.int32).tolist()
    return ids
