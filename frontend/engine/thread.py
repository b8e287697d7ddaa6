"""The thread in which an `Engine` runs its asyncio loop, and the ways into it."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeAlias, TypeVar

from ...runtime.config import ServeConfig
from ..launch.child_process import Commands, replica_commands
from ..launch.errors import ServerError
from ..launch.placement import place_replicas
from .completion import CompletionPart
from .local_server import EngineRequest, LocalServer

T = TypeVar("T")
Work: TypeAlias = Callable[[LocalServer], Coroutine[Any, Any, T]]


class EngineThread:
    """Runs a `LocalServer` from the constructor's return until `close`, which also runs at exit.

    `first_epoch` is for engines that have a client in common: no two of them may have an epoch in common.

    A fork copies no threads, so in a child process every call raises ServerError, and `close` has no effect.
    """

    def __init__(self, config: ServeConfig, first_epoch: int = 1) -> None:
        commands = replica_commands(place_replicas(config))
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._started: concurrent.futures.Future[LocalServer] = concurrent.futures.Future()
        self._closing = asyncio.Event()
        # A daemon, because the interpreter waits for other threads before it calls the functions of `atexit`.
        self._thread = threading.Thread(
            target=self._run, args=(config, commands, first_epoch), name="arbora", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)
        try:
            self._server = self._started.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        atexit.unregister(self.close)
        if os.getpid() != self._process:
            return
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def run(self, work: Work[T]) -> T:
        future = self._submit(work)
        try:
            return future.result()
        finally:
            future.cancel()  # does nothing unless the wait was interrupted

    async def run_async(self, work: Work[T]) -> T:
        return await asyncio.wrap_future(self._submit(work))

    def stream(self, request: EngineRequest) -> Iterator[CompletionPart]:
        parts: queue.SimpleQueue[CompletionPart | None] = queue.SimpleQueue()
        future = self._submit(lambda server: server.complete(request, parts.put))
        future.add_done_callback(lambda _: parts.put(None))
        try:
            while (part := parts.get()) is not None:
                yield part
            future.result()
        finally:
            future.cancel()

    async def stream_async(self, request: EngineRequest) -> AsyncIterator[CompletionPart]:
        loop = asyncio.get_running_loop()
        parts: asyncio.Queue[CompletionPart | None] = asyncio.Queue()

        def put(part: CompletionPart | None) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, part)

        future = self._submit(lambda server: server.complete(request, put))
        future.add_done_callback(lambda _: put(None))
        try:
            while (part := await parts.get()) is not None:
                yield part
            future.result()
        finally:
            future.cancel()

    def _submit(self, work: Work[T]) -> concurrent.futures.Future[T]:
        if os.getpid() != self._process:
            raise ServerError(
                f"this Engine belongs to process {self._process}, and a fork of it can't use it. Make an "
                "Engine in the child process, start children with "
                'multiprocessing.get_context("spawn"), or run `arbora serve` and use arbora.connect(URL) in '
                "all processes."
            )
        if self._closing.is_set() or self._loop.is_closed():
            raise ServerError("the engine is closed")
        return asyncio.run_coroutine_threadsafe(work(self._server), self._loop)

    def _run(self, config: ServeConfig, commands: Commands, first_epoch: int) -> None:
        """Runs the loop in the engine's thread. It starts all children, because they die with the thread that
        did."""
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve(config, commands, first_epoch))
        finally:
            self._loop.close()

    async def _serve(self, config: ServeConfig, commands: Commands, first_epoch: int) -> None:
        starting = asyncio.create_task(LocalServer.start(config, commands, first_epoch))
        closing = asyncio.create_task(self._closing.wait())
        await asyncio.wait([starting, closing], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
        try:
            server = await starting
        except BaseException as error:
            closing.cancel()
            await asyncio.wait([closing])
            self._started.set_exception(error)
            return
        self._started.set_result(server)
        try:
            await closing
        finally:
            await server.close()
