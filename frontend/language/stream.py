"""The text of a running program's calls, piece by piece."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, NamedTuple

from .background import start_thread, wait_for_at_exit
from .execution import Execution, OnPart
from .state import FinishedState


class Part(NamedTuple):
    """A piece of the text of a named call."""

    name: str
    text: str


class Stream:
    """Iterates over a program's `Part`s. `state` is its state when they have all been read. Ending the
    iteration early cancels the program."""

    def __init__(
        self, begin: Callable[[OnPart], Execution], run: Callable[[Execution], FinishedState]
    ) -> None:
        self.state: FinishedState | None = None
        self._parts: queue.SimpleQueue[Part | None] = queue.SimpleQueue()
        self._is_cancelled = False
        self._execution = begin(lambda name, text: self._parts.put(Part(name, text)))
        self._program = start_thread(lambda: run(self._execution))
        self._program.add_done_callback(lambda _: self._parts.put(None))

    def __iter__(self) -> Iterator[Part]:
        try:
            while (part := self._parts.get()) is not None:
                yield part
        finally:
            self.close()
        if not self._is_cancelled:
            self.state = self._program.result()

    def close(self) -> None:
        """Cancels the program unless it has ended, and ends its iteration."""
        if not self._program.done():
            self._is_cancelled = True
            self._execution.cancel()
            wait_for_at_exit(self._program)
        self._parts.put(None)


class AsyncStream:
    """As `Stream`, in the running event loop."""

    def __init__(
        self,
        begin: Callable[[OnPart], Execution],
        run: Callable[[Execution], Coroutine[Any, Any, FinishedState]],
    ) -> None:
        self.state: FinishedState | None = None
        self._parts: asyncio.Queue[Part | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def on_part(name: str, text: str) -> None:
            loop.call_soon_threadsafe(self._parts.put_nowait, Part(name, text))

        self._program = loop.create_task(run(begin(on_part)))
        self._program.add_done_callback(lambda _: self._parts.put_nowait(None))

    async def __aiter__(self) -> AsyncIterator[Part]:
        try:
            while (part := await self._parts.get()) is not None:
                yield part
        finally:
            await self.aclose()
        if not self._program.cancelling():  # otherwise `aclose` has cancelled the program
            self.state = await self._program

    async def aclose(self) -> None:
        """Cancels the program unless it has ended, and ends its iteration."""
        self._program.cancel()
        await asyncio.gather(self._program, return_exceptions=True)
        self._parts.put_nowait(None)
