"""Accepts connections, a few in each turn of the event loop, and pauses while the limits are reached."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

from .connections import Connections
from .limits import Limits

RETRY_SECONDS = 0.1
NO_SHUTDOWN_TIMEOUT = 3600.0  # `LimitedTransport` ends connections that are not closed in time
# Errors of accept(2) after which the next connection may work: this one was closed or its network failed.
_GONE = {errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH}


class Acceptor:
    """Owns the listening socket's events. Connections that are not accepted wait in the system's queue.

    With `tls`, a connection counts while its handshake lasts, and is served after it.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        connections: Connections,
        limits: Limits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._protocol = protocol
        self._connections = connections
        self._limits = limits
        self._tls = tls
        self._per_turn = limits.accepted_per_turn if tls is None else limits.handshakes_per_turn
        self._loop = asyncio.get_running_loop()
        self._opening: dict[asyncio.Task[None], float] = {}  # when each began, the oldest first
        self._retry: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        connections.on_change = self._resume
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accepts no more connections, and ends the handshakes that go on. The socket stays open."""
        self._connections.on_change = None
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        for task in self._opening:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(self._per_turn):
            if not self._has_place():
                if not self._may_end_handshake():
                    self._pause()
                    return
                self._end_oldest_handshake()
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _GONE:  # the process has no descriptor or no memory left
                    self._pause()
                    return
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._open(connection))
            self._opening[task] = self._loop.time()
            task.add_done_callback(self._forget)

    async def _open(self, connection: socket.socket) -> None:
        seconds = None if self._tls is None else self._limits.head_seconds
        try:
            await self._loop.connect_accepted_socket(
                self._protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=None if self._tls is None else NO_SHUTDOWN_TIMEOUT,
            )
        except OSError:  # the client has disconnected, or the handshake has failed or lasted too long
            connection.close()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._opening.pop(task, None)

    def _has_place(self) -> bool:
        return self._connections.acceptable() > len(self._opening)

    def _may_end_handshake(self) -> bool:
        """Whether the oldest handshake has lasted so long that it may be ended for another connection."""
        since = next(iter(self._opening.values()), None)
        if since is None or self._tls is None:
            return False
        return self._loop.time() - since >= self._limits.spared_seconds

    def _end_oldest_handshake(self) -> None:
        oldest = next(iter(self._opening))
        del self._opening[oldest]
        oldest.cancel()

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(RETRY_SECONDS, self._resume)

    def _resume(self) -> None:
        """Accepts again after a pause, if the limits may allow it."""
        if self._retry is not None and (self._has_place() or self._may_end_handshake()):
            self._retry.cancel()
            self._retry = None
            self._loop.add_reader(self._listener, self._accept)
        elif self._retry is not None:
            self._retry.cancel()
            self._retry = self._loop.call_later(RETRY_SECONDS, self._resume)
