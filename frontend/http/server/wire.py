"""The writing side of a connection, which limits how long a client may leave an answer unread."""

from __future__ import annotations

import array
import asyncio
import fcntl
import termios
from collections.abc import Callable
from typing import Any

from .limits import Limits


class Wire(asyncio.Transport):
    """The transport that the HTTP protocol writes to. `has_more_input` tells, when the connection is closed,
    whether the client is still sending a request.

    A TLS transport that closes reads and drops input by itself, and waits until the client closes too.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        limits: Limits,
        now: Callable[[], float],
        has_more_input: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._transport = transport
        self._limits = limits
        self._now = now
        self._has_more_input = has_more_input
        self._closed_at: float | None = None  # when it was closed; with TLS, when bytes were last undelivered
        self._lingers = False
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self._written = 0  # bytes
        self._progress_at: float | None = None  # when the client last read; None if nothing is left to read
        self._taken = 0  # bytes that the client had read then

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Has no effect after a disconnect, where uvloop's transport raises RuntimeError."""
        if not self.is_closing():
            self._written += len(data)
            self._transport.write(data)

    def close(self) -> None:
        """Sends the written bytes. While the client is still sending, its bytes are read and dropped for a
        moment: closing before they are read would reset the connection and lose the answer."""
        if self._closed_at is not None:
            return
        self._closed_at = self._now()
        self._lingers = self._has_more_input() and not self._is_tls
        if self._lingers and not self._transport.is_closing():
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()

    def release(self) -> None:
        """Deletes the reference to the connection, which has ended."""
        self._has_more_input = bool  # without arguments it returns False

    def end_of_input(self) -> None:
        """The client sends nothing more, so there is no reason to linger."""
        if self._lingers:
            self._lingers = False
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._closed_at is not None or self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        if not self.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_closing():
            self._transport.resume_reading()

    def check(self, now: float) -> None:
        """Ends the connection if the client does not read the answer, or does not stop sending."""
        left = self._transport.get_write_buffer_size()
        if self._closed_at is not None and self._is_tls:
            left += _unacknowledged(self._transport)
            if left:
                self._closed_at = now
            elif now - self._closed_at > self._limits.linger_seconds:
                self._transport.abort()
                return
        elif self._closed_at is not None and self._lingers:
            if now - self._closed_at > self._limits.linger_seconds:
                self._lingers = False
                self._transport.close()
            return
        taken = self._written - left
        if left == 0:
            self._progress_at = None
        elif self._progress_at is None or taken >= self._taken + self._limits.write_step_bytes:
            self._progress_at, self._taken = now, taken
        elif now - self._progress_at > self._limits.write_seconds:
            self._transport.abort()


def _unacknowledged(transport: asyncio.Transport) -> int:
    """The bytes that the system has not sent, or whose receipt the client's system has not confirmed."""
    size = array.array("i", [0])
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, size)
    except OSError:  # the socket is closed
        return 0
    return size[0]
