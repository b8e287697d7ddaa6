"""`arbora.program`: a function over a state that can be run on a backend."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from ..launch.progress import progress_bar
from .backend import Backend
from .background import run_in_new_loop, start_thread, wait_for_at_exit
from .default_backend import backend_of
from .execution import Execution, OnPart
from .state import FinishedState, State
from .stream import AsyncStream, Stream

_AWAITED = "await program.arun(…)"


class Program:
    """A function whose first parameter is the state. Call it with a state to run it as a part of another
    program."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self.is_async = inspect.iscoroutinefunction(function)

    def __call__(self, state: State, *arguments: Any, **named: Any) -> Any:
        return self._function(state, *arguments, **named)

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """The function's parameters without its first one, the state."""
        return list(inspect.signature(self._function).parameters.values())[1:]

    def run(self, *arguments: Any, backend: object = None, **named: Any) -> FinishedState:
        """Runs the program to its end. Raises `ProgramError` for a statement that failed.

        `backend` is an `arbora.Engine` or what `arbora.connect` returns; the default is that of
        `arbora.set_default_backend`.
        """
        return self._run(self._execution(backend_of(backend)), arguments, named)

    async def arun(self, *arguments: Any, backend: object = None, **named: Any) -> FinishedState:
        """As `run`, in an event loop. A program that is no `async def` runs in a thread of its own.
        Cancelling this ends the program's calls."""
        return await self._awaited(self._execution(backend_of(backend)), arguments, named)

    def run_batch(
        self,
        batch: Sequence[Mapping[str, Any]],
        *,
        backend: object = None,
        concurrency: int | None = None,
        progress: bool = False,
    ) -> list[FinishedState]:
        """Runs the program once for each mapping of arguments, many at a time. Returns their states in order.

        `concurrency` is how many run at a time; by default as many as the backend serves. The first error is
        raised at once and cancels the other programs.
        """
        for number, named in enumerate(batch):
            if not isinstance(named, Mapping):
                raise TypeError(
                    f"run_batch: batch[{number}] is {repr(named)[:60]}, but must be a mapping of the "
                    f"program's arguments, such as {{{self._example()}}}."
                )
        found = backend_of(backend)
        most = max(1, min(found.concurrency if concurrency is None else concurrency, len(batch)))
        with progress_bar(len(batch), progress, unit="program") as advance:
            if self.is_async:
                return run_in_new_loop(self._batch_in_loop(found, batch, most, advance), _AWAITED)
            return self._batch_in_threads(found, batch, most, advance)

    def stream(self, *arguments: Any, backend: object = None, **named: Any) -> Stream:
        """Runs the program and iterates over the pieces of its named calls as they arrive."""
        found = backend_of(backend)
        return Stream(
            lambda on_part: self._execution(found, on_part),
            lambda execution: self._run(execution, arguments, named),
        )

    def astream(self, *arguments: Any, backend: object = None, **named: Any) -> AsyncStream:
        """As `stream`, for `async for` in an event loop."""
        found = backend_of(backend)
        return AsyncStream(
            lambda on_part: self._execution(found, on_part),
            lambda execution: self._awaited(execution, arguments, named),
        )

    def _example(self) -> str:
        return ", ".join(f"{each.name!r}: …" for each in self.parameters)

    def _execution(self, backend: Backend, on_part: OnPart | None = None) -> Execution:
        return Execution(backend, on_part, is_async=self.is_async)

    def _batch_in_threads(
        self, backend: Backend, batch: Sequence[Mapping[str, Any]], most: int, advance: Callable[[], object]
    ) -> list[FinishedState]:
        executions = [self._execution(backend) for _ in batch]
        with ThreadPoolExecutor(most, thread_name_prefix="arbora-program") as threads:
            try:
                runs = [
                    threads.submit(self._run, execution, (), dict(named))
                    for execution, named in zip(executions, batch, strict=True)
                ]
                for run in as_completed(runs):
                    run.result()
                    advance()
                return [run.result() for run in runs]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for execution in executions:
                    execution.cancel()
                raise

    async def _batch_in_loop(
        self, backend: Backend, batch: Sequence[Mapping[str, Any]], most: int, advance: Callable[[], object]
    ) -> list[FinishedState]:
        places = asyncio.Semaphore(most)

        async def run(named: Mapping[str, Any]) -> FinishedState:
            async with places:
                state = await self._run_async(self._execution(backend), (), dict(named))
            advance()
            return state

        return await asyncio.gather(*map(run, batch))

    def _run(self, execution: Execution, arguments: tuple[Any, ...], named: dict[str, Any]) -> FinishedState:
        if self.is_async:
            return run_in_new_loop(self._run_async(execution, arguments, named), _AWAITED)
        with execution.begin() as state:
            result = self._function(state, *arguments, **named)
            execution.wait_for_all()
        return execution.finish(state, result)

    async def _awaited(
        self, execution: Execution, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> FinishedState:
        if self.is_async:
            return await self._run_async(execution, arguments, named)
        program = start_thread(lambda: self._run(execution, arguments, named))
        try:
            return await asyncio.wrap_future(program)
        except asyncio.CancelledError:
            execution.cancel()
            wait_for_at_exit(program)
            raise

    async def _run_async(
        self, execution: Execution, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> FinishedState:
        with execution.begin() as state:
            result = await self._function(state, *arguments, **named)
            await execution.finished()
        return execution.finish(state, result)


def program(function: Callable[..., Any]) -> Program:
    """Makes a program of a function whose first parameter is the state."""
    return Program(function)
