"""`arbora.program`: a function over a state that can be run on a backend."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from tqdm import tqdm

from .backend import Backend
from .default_backend import backend_of
from .execution import Execution, OnPart
from .state import State
from .trace import Trace


class Part(NamedTuple):
    """A piece of the text of a named call."""

    name: str
    text: str


class FinishedState(State):
    """The state of a program that has ended, with its trace and what the function returned."""

    trace: Trace
    result: Any


class Program:
    """A function whose first parameter is the state. Call it with a state to run it as a part of another
    program."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self.is_async = inspect.iscoroutinefunction(function)

    def __call__(self, state: State, *arguments: Any, **named: Any) -> Any:
        return self._function(state, *arguments, **named)

    def run(self, *arguments: Any, backend: object = None, **named: Any) -> FinishedState:
        """Runs the program to its end. Raises `ProgramError` for a statement that failed.

        `backend` is an `arbora.Engine` or what `arbora.connect` returns; without it the one of
        `arbora.set_default_backend`.
        """
        return self._run(backend_of(backend), None, arguments, named)

    async def arun(self, *arguments: Any, backend: object = None, **named: Any) -> FinishedState:
        """As `run`; a program that is no `async def` runs in a thread of its own."""
        found = backend_of(backend)
        if self.is_async:
            return await self._run_async(found, None, arguments, named)
        return await asyncio.to_thread(self._run, found, None, arguments, named)

    def run_batch(
        self,
        batch: Sequence[Mapping[str, Any]],
        *,
        backend: object = None,
        concurrency: int | None = None,
        progress: bool = False,
    ) -> list[FinishedState]:
        """Runs the program once for each mapping of arguments, many at a time. Returns their states in order.

        `concurrency` is how many run at a time; by default as many as the backend serves. Raises the error of
        the first program that failed; those that have not begun then don't run.
        """
        found = backend_of(backend)
        most = max(1, min(concurrency or found.concurrency, len(batch)))
        with (
            ThreadPoolExecutor(most, thread_name_prefix="arbora-program") as threads,
            _bar(len(batch), progress) as advance,
        ):
            runs = [threads.submit(self._run, found, None, (), dict(named)) for named in batch]
            for run in runs:
                run.add_done_callback(lambda _: advance())
            try:
                return [run.result() for run in runs]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def stream(self, *arguments: Any, backend: object = None, **named: Any) -> Stream:
        """Runs the program and iterates over the pieces of its named calls as they arrive."""
        found = backend_of(backend)
        return Stream(lambda on_part: self._run(found, on_part, arguments, named))

    def _run(
        self, backend: Backend, on_part: OnPart | None, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> FinishedState:
        if self.is_async:
            return asyncio.run(self._run_async(backend, on_part, arguments, named))
        execution = Execution(backend, on_part)
        state = execution.first_state()
        try:
            result = self._function(state, *arguments, **named)
            execution.wait_for_all()
        except BaseException:
            execution.cancel()
            raise
        return _finished(state, execution, result)

    async def _run_async(
        self, backend: Backend, on_part: OnPart | None, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> FinishedState:
        execution = Execution(backend, on_part)
        state = execution.first_state()
        try:
            result = await self._function(state, *arguments, **named)
            await execution.finished()
        except BaseException:
            execution.cancel()
            raise
        return _finished(state, execution, result)


class Stream:
    """Iterates over a program's `Part`s. `state` is its state when they have all been read."""

    def __init__(self, run: Callable[[OnPart], FinishedState]) -> None:
        self.state: FinishedState | None = None
        self._parts: queue.SimpleQueue[Part | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        threading.Thread(target=self._run, args=(run,), name="arbora-stream", daemon=True).start()

    def __iter__(self) -> Iterator[Part]:
        while (part := self._parts.get()) is not None:
            yield part
        if self._error is not None:
            raise self._error

    def _run(self, run: Callable[[OnPart], FinishedState]) -> None:
        try:
            self.state = run(lambda name, text: self._parts.put(Part(name, text)))
        except BaseException as error:
            self._error = error
        finally:
            self._parts.put(None)


def program(function: Callable[..., Any]) -> Program:
    """Makes a program of a function whose first parameter is the state."""
    return Program(function)


def _finished(state: State, execution: Execution, result: object) -> FinishedState:
    finished = FinishedState(execution, state._transcript, state._outcomes)
    finished.trace = execution.trace
    finished.result = result
    return finished


@contextlib.contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error. Gives the function that advances it."""
    bar = tqdm(total=total, unit="program", disable=not shown)
    try:
        yield lambda: bar.update() and None
    finally:
        bar.close()
