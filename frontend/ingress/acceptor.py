"""Accepts connections, a few in each turn of the event loop, and pauses while the limits are reached."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

from .connections import Connections
from .limits import Limits

RETRY_SECONDS = 0.1
# The connection was closed already, or its network failed: the next one may work (accept(2)).
_GONE = {errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH}


class Acceptor:
    """Owns the listening socket's events. Connections that are not accepted wait in the system's queue."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        connections: Connections,
        limits: Limits,
    ) -> None:
        self._listener = listener
        self._protocol = protocol
        self._connections = connections
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        connections.on_change = self._resume
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accepts no more connections. The socket stays open."""
        self._connections.on_change = None
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()

    def _accept(self) -> None:
        for _ in range(self._limits.accepted_per_turn):
            if self._connections.acceptable() <= len(self._opening):
                self._pause()
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _GONE:  # no descriptor or no memory is left
                    self._pause()
                    return
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:  # the client has disconnected
            connection.close()

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(RETRY_SECONDS, self._resume)

    def _resume(self) -> None:
        """Accepts again after a pause, if the limits may allow it."""
        if self._retry is not None and self._connections.acceptable() > len(self._opening):
            self._retry.cancel()
            self._retry = None
            self._loop.add_reader(self._listener, self._accept)
        elif self._retry is not None:
            self._retry.cancel()
            self._retry = self._loop.call_later(RETRY_SECONDS, self._resume)
