"""Threads that wait for grammars, in an order in which neither large grammars nor one tenant's delay all
others."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any, TypeVar

from ..errors import Expected, bare_copy
from ..processes.compiler_process import GoOn, TakesLongError

LARGE = 16 << 10  # characters of a large grammar, which may need the whole of its time limit
PACE = 4096  # characters of a grammar that delay its turn by one second
MAX_SIZE_DELAY_S = 8.0
HALF_LIFE_S = 30.0
HEAVY_S = 1.0  # seconds of recent compiling: usual schemas never take so long, hostile ones do at once
DELAY_FACTOR = 4.0  # seconds of delay for each second of the tenant's recent compiling
MAX_TENANT_DELAY_S = 60.0
MAX_TENANTS = 1024

Made = TypeVar("Made")


class RecentTimes:
    """The seconds of compiling of each tenant, with a half-life of half a minute. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._spent: dict[str, tuple[float, float]] = {}  # seconds by tenant, and when they were counted

    def add(self, tenant: str, seconds: float) -> None:
        with self._lock:
            now = self._clock()
            self._spent[tenant] = self._decay(tenant, now) + seconds, now
            if len(self._spent) > MAX_TENANTS:
                least = min(self._spent, key=lambda name: self._decay(name, now))
                del self._spent[least]

    def get(self, tenant: str) -> float:
        with self._lock:
            return self._decay(tenant, self._clock())

    def is_heavy(self, tenant: str) -> bool:
        return self.get(tenant) > HEAVY_S

    def delay_s(self, tenant: str) -> float:
        """The delay of the tenant's grammars."""
        return min(DELAY_FACTOR * self.get(tenant), MAX_TENANT_DELAY_S)

    def _decay(self, tenant: str, now: float) -> float:
        seconds, then = self._spent.get(tenant, (0.0, now))
        return float(seconds * 0.5 ** ((now - then) / HALF_LIFE_S))


@dataclass(eq=False)
class _Task:
    turn: float
    number: int
    is_large: bool
    tenant: str
    make: Callable[[GoOn], Any]
    future: Future[Any]
    is_heavy: bool = False  # whether the tenant was heavy when the task began


class FairThreadPool:
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
        times: RecentTimes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._free = threads
        self._free_large = large
        self._free_heavy = max(1, threads - 1)
        self._clock = clock
        self._times = times
        self._lock = Lock()
        self._numbers = count()
        self._waiting: list[_Task] = []
        self._is_closed = False

    def submit(self, size: int, make: Callable[[GoOn], Made], tenant: str = "") -> Future[Made]:
        """Queues a task. `size`: the grammar's characters.

        When `make` takes long, it calls its argument: if that returns True, the task goes on and counts as
        large; otherwise `make` must raise TakesLongError and runs again as a large task with the same turn.
        The future can be cancelled until it runs as a large task.
        """
        turn = self._clock() + min(size / PACE, MAX_SIZE_DELAY_S)
        future: Future[Made] = Future()
        with self._lock:
            self._waiting.append(_Task(turn, next(self._numbers), size > LARGE, tenant, make, future))
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
        while self._free and (task := self._choose()):
            self._waiting.remove(task)
            self._free -= 1
            self._free_large -= task.is_large
            self._free_heavy -= task.is_heavy
            self._pool.submit(self._run, task)

    def _choose(self) -> _Task | None:
        """The waiting task that may begin now and has the first turn."""
        tenants = {task.tenant for task in self._waiting}
        heavy = {tenant for tenant in tenants if self._times.is_heavy(tenant)}
        delays_s = {tenant: self._times.delay_s(tenant) for tenant in tenants}
        able = [
            task
            for task in self._waiting
            if (self._free_large or not task.is_large) and (self._free_heavy or task.tenant not in heavy)
        ]
        first = min(able, key=lambda task: (task.turn + delays_s[task.tenant], task.number), default=None)
        if first is not None:
            first.is_heavy = first.tenant in heavy
        return first

    def _may_go_on(self, task: _Task) -> bool:
        """Whether a running task may go on as a large one."""
        with self._lock:
            if not task.is_large and self._free_large:
                task.is_large = True
                self._free_large -= 1
            return task.is_large

    def _run(self, task: _Task) -> None:
        is_done = True
        try:
            is_done = _complete(task, lambda: self._may_go_on(task))
        finally:
            with self._lock:
                self._free += 1
                self._free_large += task.is_large
                self._free_heavy += task.is_heavy
                if not is_done:
                    task.is_large = True
                    if self._is_closed:
                        task.future.cancel()
                    else:
                        self._waiting.append(task)
                self._begin()


def _complete(task: _Task, go_on: GoOn) -> bool:
    """Runs a task and completes its future. Returns False if it must run again as a large task."""
    is_begun = task.is_large and task.future.set_running_or_notify_cancel()
    if task.future.cancelled():
        return True
    made, failure = None, None
    try:
        made = task.make(go_on)
    except TakesLongError:
        return False
    except BaseException as error:  # the owner of the future handles it
        failure = bare_copy(error) if isinstance(error, Expected) else error
    if not is_begun and not task.future.set_running_or_notify_cancel():
        return True
    if failure is None:
        task.future.set_result(made)
    else:
        task.future.set_exception(failure)
    return True
