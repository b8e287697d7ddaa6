"""Threads in which what is small never waits behind all that is large."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from operator import itemgetter
from threading import Lock
from typing import Any, TypeVar

LARGE = 16 << 10  # characters; what has more may well take all its time
PACE = 4096  # characters count as a second of waiting
LONGEST_LEAD_S = 8.0  # so that nothing waits for ever while smaller ones come

Made = TypeVar("Made")


@dataclass(order=True)
class _Task:
    turn: float
    number: int
    is_large: bool = field(compare=False)
    make: Callable[[], Any] = field(compare=False)
    future: Future[Any] = field(compare=False)


class Lanes:
    """Runs tasks in as many as `threads` at a time, of them at most `large` large ones.

    A task's turn is when it came and a delay for its size: the small go first, and nothing waits for ever.
    After `close` nothing is submitted.
    """

    def __init__(
        self, name: str, threads: int, large: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._free = threads
        self._free_large = large
        self._clock = clock
        self._lock = Lock()
        self._numbers = count()
        self._small: list[_Task] = []
        self._large: list[_Task] = []

    def submit(self, size: int, make: Callable[[], Made]) -> Future[Made]:
        """`size` is the grammar's number of characters. The future can be cancelled until it begins."""
        turn = self._clock() + min(size / PACE, LONGEST_LEAD_S)
        future: Future[Made] = Future()
        task = _Task(turn, next(self._numbers), size > LARGE, make, future)
        with self._lock:
            heappush(self._large if task.is_large else self._small, task)
            self._begin()
        return future

    def close(self) -> None:
        """Waits for what has begun; nothing else begins."""
        with self._lock:
            waiting = self._small + self._large
            self._small, self._large = [], []
        for task in waiting:
            task.future.cancel()
        self._pool.shutdown()

    def _begin(self) -> None:
        while self._free and (task := self._next()):
            self._free -= 1
            self._free_large -= task.is_large
            self._pool.submit(self._run, task)

    def _next(self) -> _Task | None:
        lanes = [lane for lane in (self._small, self._large if self._free_large else []) if lane]
        return heappop(min(lanes, key=itemgetter(0))) if lanes else None

    def _run(self, task: _Task) -> None:
        try:
            if task.future.set_running_or_notify_cancel():
                _complete(task)
        finally:
            with self._lock:
                self._free += 1
                self._free_large += task.is_large
                self._begin()


def _complete(task: _Task) -> None:
    try:
        made = task.make()
    except BaseException as error:  # for whoever waits for it
        task.future.set_exception(error)
    else:
        task.future.set_result(made)
