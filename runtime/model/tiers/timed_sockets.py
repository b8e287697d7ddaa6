"""Sockets with a deadline for a whole exchange, even if bytes arrive slowly."""

from __future__ import annotations

import socket
import time
from typing import Any


class Deadline:
    """The end of the current exchange, on the monotonic clock."""

    def __init__(self) -> None:
        self._end = 0.0

    def set(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until the deadline. Raises TimeoutError if it has passed."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        return left


class TimedSocket:
    """A connected socket: its timeout is for each call, the deadline for all calls together."""

    def __init__(self, connected: socket.socket, deadline: Deadline) -> None:
        self._socket = connected
        self._deadline = deadline
        self._timeout = connected.gettimeout()

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._limit()
        return self._socket.recv(size, flags)

    def recv_into(self, buffer: bytearray) -> int:
        self._limit()
        return self._socket.recv_into(buffer)

    def sendall(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            self._limit()
            rest = rest[self._socket.send(rest) :]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def _limit(self) -> None:
        left = self._deadline.left()
        self._socket.settimeout(left if self._timeout is None else min(left, self._timeout))
