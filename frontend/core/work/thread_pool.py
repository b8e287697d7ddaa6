"""Runs long work beside the event loop, on a few threads that clients share in turns."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from ....runtime.errors import RequestError
from ....runtime.system_cores import count_usable_cores
from .caller import Caller, ClientGoneError

T = TypeVar("T")
P = ParamSpec("P")
Steps: TypeAlias = Generator[None, None, T]
"""Work that yields between steps, where it can stop or wait for other work. It returns its result."""

MAX_THREADS = 8


def run_now(steps: Steps[T]) -> T:
    """The result of all steps, on the calling thread."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


class FairThreadPool:
    """Runs the steps of jobs. Clients take turns after each step, and so do the jobs of one client.

    One client never occupies all threads, as a step may take long. Threads exist while there is work.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._max_threads = threads or min(max(count_usable_cores() // 2, 2), MAX_THREADS)
        self._max_of_one = max(self._max_threads - 1, 1)
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[_Job[Any]]] = OrderedDict()
        self._busy: Counter[str] = Counter()  # number of busy threads by client
        self._threads = 0

    async def call(self, caller: Caller, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `work`. It runs at once if the caller's body is small, else on another thread."""
        if not caller.is_large:
            return work(*args, **kwargs)

        def steps() -> Steps[T]:
            return work(*args, **kwargs)
            yield

        return await self.run(caller, steps())

    async def run(self, caller: Caller, steps: Steps[T]) -> T:
        """The result of the steps. If the client disconnects, stops and raises `ClientGoneError`."""
        job = _Job(steps, asyncio.get_running_loop())
        left = asyncio.ensure_future(caller.left())
        try:
            self._add(caller.name, job)
            await asyncio.wait((job.result, left), return_when=asyncio.FIRST_COMPLETED)
            if not job.result.done():
                raise ClientGoneError
            return job.result.result()
        finally:
            job.is_abandoned = True
            left.cancel()
            del job  # breaks a cycle: the job has the error, whose traceback has this frame

    def _add(self, client: str, job: _Job[Any]) -> None:
        with self._lock:
            self._waiting.setdefault(client, deque()).append(job)
            starts = self._threads < self._max_threads
            self._threads += starts
        if not starts:
            return
        try:
            threading.Thread(target=self._work, name="arbora-long-work", daemon=True).start()
        except RuntimeError as error:  # the system allows no more threads
            if self._works_without_one_more(client, job):
                return
            raise RequestError(
                "The server can't start a thread for this request; try again in a moment.",
                status=503,
                code="no_thread",
                retry_after=1,
            ) from error

    def _works_without_one_more(self, client: str, job: _Job[Any]) -> bool:
        """Returns whether a running thread will do the job. Otherwise removes the job."""
        with self._lock:
            self._threads -= 1
            jobs = self._waiting.get(client, deque())
            if self._threads or job not in jobs:
                return True
            jobs.remove(job)
            if not jobs:
                self._waiting.pop(client, None)
            return False

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            client, job = taken
            has_more = job.step()
            with self._lock:
                self._busy[client] -= 1
                if not self._busy[client]:
                    del self._busy[client]
                if has_more:
                    self._waiting.setdefault(client, deque()).append(job)

    def _take(self) -> tuple[str, _Job[Any]] | None:
        """The next job of the client whose turn it is; None if the thread has to end."""
        with self._lock:
            client = next((each for each in self._waiting if self._busy[each] < self._max_of_one), None)
            if client is None:
                self._threads -= 1
                return None
            jobs = self._waiting.pop(client)
            job = jobs.popleft()
            if jobs:
                self._waiting[client] = jobs
            self._busy[client] += 1
            return client, job


class _Job(Generic[T]):
    def __init__(self, steps: Steps[T], loop: asyncio.AbstractEventLoop) -> None:
        self._steps = steps
        self._loop = loop
        self.result: asyncio.Future[T] = loop.create_future()
        self.is_abandoned = False

    def step(self) -> bool:
        """Runs a step. Returns whether more follow. Never raises, because the thread has other jobs to do."""
        try:
            if self.is_abandoned:
                self._steps.close()
                return False
            next(self._steps)
        except StopIteration as stop:
            self._tell(self.result.set_result, stop.value)
        except BaseException as error:  # also a panic in a library that is written in Rust
            # Drops this frame from the traceback. It refers to the job and so to the error, a cycle.
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            is_usual = isinstance(error, Exception)
            self._tell(self.result.set_exception, error if is_usual else RuntimeError(repr(error)))
        else:
            return True
        return False

    def _tell(self, setter: Callable[[Any], None], value: object) -> None:
        def tell() -> None:
            if not self.result.done() and not self.is_abandoned:
                setter(value)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(tell)
