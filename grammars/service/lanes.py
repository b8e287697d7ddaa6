"""Threads for tasks, scheduled so that neither large tasks nor one tenant's tasks delay all others."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any, TypeVar

from ..errors import Expected, bare_copy
from .jobs import GoOn
from .spending import Spending

LARGE = 16 << 10  # characters; a longer grammar may need the whole of its time limit
PACE = 4096  # characters of a grammar that delay its turn by one second
LONGEST_LEAD_S = 8.0  # the longest delay, so that every task gets its turn

Made = TypeVar("Made")


class TakesLongError(Exception):
    """A first, short attempt was not enough for a task."""


@dataclass(eq=False)
class _Task:
    turn: float
    number: int
    is_large: bool
    tenant: str
    make: Callable[[], Any]
    future: Future[Any]
    attempt: Callable[[GoOn], Any] | None = None  # runs before `make`; see `Lanes.submit`
    is_heavy: bool = False  # whether the tenant was heavy when the task began


class Lanes:
    """Runs up to `threads` tasks at a time, of which up to `large` are large. Tenants with much recent
    compiling never get all threads.

    A task's turn is its time of arrival, plus a bounded delay for its size and for its tenant's recent
    compiling. No task may be submitted after `close`.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        large: int,
        clock: Callable[[], float] = time.monotonic,
        spending: Spending | None = None,
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._free = threads
        self._free_large = large
        self._free_heavy = max(1, threads - 1)
        self._clock = clock
        self._spending = spending or Spending(clock)
        self._lock = Lock()
        self._numbers = count()
        self._waiting: list[_Task] = []
        self._is_closed = False

    def submit(
        self,
        size: int,
        make: Callable[[], Made],
        tenant: str = "",
        attempt: Callable[[GoOn], Made] | None = None,
    ) -> Future[Made]:
        """Queues a task. `size`: the grammar's characters.

        `attempt`, if given, runs instead of `make`. When it takes long, it calls its argument: if that
        returns True, the attempt goes on and counts as a large task; otherwise it must raise TakesLongError,
        and `make` is queued as a large task with the same turn. The future can be cancelled until the last of
        them begins.
        """
        turn = self._clock() + min(size / PACE, LONGEST_LEAD_S)
        future: Future[Made] = Future()
        task = _Task(turn, next(self._numbers), size > LARGE, tenant, make, future, attempt)
        with self._lock:
            self._waiting.append(task)
            self._begin()
        return future

    def close(self) -> None:
        """Cancels waiting tasks and waits for the running ones."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, []
        for task in waiting:
            task.future.cancel()
        self._pool.shutdown()

    def _begin(self) -> None:
        while self._free and (task := self._next()):
            self._waiting.remove(task)
            self._free -= 1
            self._free_large -= task.is_large
            self._free_heavy -= task.is_heavy
            self._pool.submit(self._run, task)

    def _next(self) -> _Task | None:
        tenants = {task.tenant for task in self._waiting}
        heavy = {tenant for tenant in tenants if self._spending.is_heavy(tenant)}
        lead = {tenant: self._spending.lead(tenant) for tenant in tenants}
        able = [
            task
            for task in self._waiting
            if (self._free_large or not task.is_large) and (self._free_heavy or task.tenant not in heavy)
        ]
        first = min(able, key=lambda task: (task.turn + lead[task.tenant], task.number), default=None)
        if first is not None:
            first.is_heavy = first.tenant in heavy
        return first

    def _goes_on(self, task: _Task) -> bool:
        """Whether a running task may go on as a large one."""
        with self._lock:
            if not task.is_large and self._free_large:
                task.is_large = True
                self._free_large -= 1
            return task.is_large

    def _run(self, task: _Task) -> None:
        longer: _Task | None = None
        try:
            longer = _tried(task, lambda: self._goes_on(task))
        finally:
            with self._lock:
                if longer is not None and self._is_closed:
                    longer.future.cancel()
                elif longer is not None:
                    self._waiting.append(longer)
                self._free += 1
                self._free_large += task.is_large
                self._free_heavy += task.is_heavy
                self._begin()


def _tried(task: _Task, go_on: GoOn) -> _Task | None:
    """Runs a task and completes its future. Returns the task to try next if that takes too long."""
    attempt = task.attempt
    if attempt is None:
        if task.future.set_running_or_notify_cancel():
            _complete(task.future, task.make)
        return None
    if task.future.cancelled():
        return None
    done: Future[Any] = Future()
    _complete(done, lambda: attempt(go_on))
    if isinstance(done.exception(), TakesLongError):
        return _Task(task.turn, task.number, True, task.tenant, task.make, task.future)
    if task.future.set_running_or_notify_cancel():
        _complete(task.future, done.result)
    return None


def _complete(future: Future[Any], make: Callable[[], Any]) -> None:
    try:
        made = make()
    except BaseException as error:  # the future's owner handles it
        future.set_exception(bare_copy(error) if isinstance(error, Expected) else error)
    else:
        future.set_result(made)
