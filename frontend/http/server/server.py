"""Serves an ASGI application on a listening socket."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType

from starlette.types import ASGIApp

from .acceptor import Acceptor
from .connection import Connection, ServerSettings
from .connections import Connections, StartLimit
from .limits import MAX_CONNECTIONS, MAX_READ_BYTES

STOP_POLL_SECONDS = 0.05


class HttpServer:
    """Serves one application. `started` is set while connections are accepted. With `tls` the server speaks
    only HTTPS.

    `work_in_background` runs while requests are served, and is cancelled at the end.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        tls: ssl.SSLContext | None = None,
        work_in_background: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> None:
        self.started = asyncio.Event()
        self.connections = Connections(settings.limits)
        self._app = app
        self._settings = settings
        self._tls = tls
        self._work_in_background = work_in_background
        self._starts = StartLimit(settings.limits.started_per_turn)
        self._tasks: set[asyncio.Task[None]] = set()
        self._buffer = memoryview(bytearray(MAX_READ_BYTES))
        self._stopping = asyncio.Event()

    async def serve(self, listener: socket.socket) -> None:
        """Serves until `stop` or a signal, and then until the open requests are answered."""
        loop = asyncio.get_running_loop()
        with _stopped_by_signals(lambda: loop.call_soon_threadsafe(self.stop)):
            listener.listen(MAX_CONNECTIONS)
            acceptor = Acceptor(
                listener, self._connection, self.connections, self._settings.limits, self._tls
            )
            self.started.set()
            work: asyncio.Task[None] | None = None
            if self._work_in_background is not None:
                work = asyncio.create_task(self._work_in_background())
            await self._stopping.wait()
            self.started.clear()
            acceptor.close()
            if work is not None:
                work.cancel()
                await asyncio.wait((work,))
            listener.close()
            self.connections.stop()
            while self.connections.are_open or self._tasks:
                await asyncio.sleep(STOP_POLL_SECONDS)

    def stop(self) -> None:
        self._stopping.set()

    def _connection(self) -> Connection:
        self._settings.progress()
        return Connection(
            self._app, self._settings, self.connections, self._starts, self._tasks, self._buffer
        )


@contextmanager
def _stopped_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Calls `stop` when the process is told to end. At the end the signals have their usual effect."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        stop()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for each in received:
        signal.raise_signal(each)
