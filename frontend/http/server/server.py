"""Serves an ASGI application on a listening socket, by uvicorn's protocol inside our own connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .acceptor import Acceptor
from .connection import Connection, Ingress
from .connections import Connections
from .limits import MOST_CONNECTIONS

DATE_S = 1.0  # seconds after which the date in the headers of replies is renewed
RENEW_DATE = 0  # with this number uvicorn's `on_tick` renews it


class _UvicornServer(uvicorn.Server):
    """uvicorn's own main loop wakes ten times a second to see whether it must stop. This loop wakes once a
    second, and at once when it must stop, so that an idle server uses less processor time."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None  # while the main loop runs
        self._woken = asyncio.Event()

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(RENEW_DATE):
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._woken.wait()
        self._loop = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._wake()

    def stop(self) -> None:
        self.should_exit = True
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._woken.set)  # a signal's handler may call no more than this


class HttpServer:
    """`started` is set while connections are accepted. With `tls` the server speaks only HTTPS.

    `beside` runs while requests are served, and is cancelled then.
    """

    def __init__(
        self,
        app: ASGIApp,
        ingress: Ingress,
        tls: ssl.SSLContext | None = None,
        beside: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> None:
        self.started = asyncio.Event()
        self._beside = beside
        self._ingress = ingress
        self._tls = tls
        self._uvicorn = _UvicornServer(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=ingress.limits.idle_seconds,
            )
        )

    async def serve(self, listener: socket.socket) -> None:
        """Serves until `stop` or a signal, and then until the open requests are answered."""
        server = self._uvicorn
        with server.capture_signals():
            server.config.load()
            server.lifespan = server.config.lifespan_class(server.config)
            await server.startup(sockets=[])
            listener.listen(MOST_CONNECTIONS)
            ingress = self._ingress
            acceptor = Acceptor(listener, self._connection, ingress.connections, ingress.limits, self._tls)
            self.started.set()
            beside = None if self._beside is None else asyncio.create_task(self._beside())
            await server.main_loop()
            self.started.clear()
            acceptor.close()
            if beside is not None:
                beside.cancel()
                await asyncio.wait((beside,))
            await server.shutdown(sockets=[listener])

    @property
    def connections(self) -> Connections:
        return self._ingress.connections

    def stop(self) -> None:
        self._uvicorn.stop()

    def _connection(self) -> Connection:
        self._ingress.progress()
        inner = HttpToolsProtocol(self._uvicorn.config, self._uvicorn.server_state, app_state={})
        return Connection(inner, self._ingress)
