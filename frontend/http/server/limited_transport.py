"""The writing side of a connection, which limits how long a client may leave an answer unread."""

from __future__ import annotations

import array
import asyncio
import fcntl
import termios

from .limits import Limits


class LimitedTransport:
    """A transport that ends the connection of a client that reads too slowly, and lingers before it closes.

    A TLS transport that closes reads and drops input by itself, and waits until the client closes too.
    """

    def __init__(self, transport: asyncio.Transport, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.is_write_paused = False
        self.is_read_paused = False
        self.is_tls = transport.get_extra_info("sslcontext") is not None
        self._transport = transport
        self._limits = limits
        self._loop = loop
        self._is_writable = asyncio.Event()
        self._closed_at: float | None = None  # the time of closing; with TLS, of the last unsent bytes
        self._lingers = False
        self._written = 0  # bytes written so far
        self._progress_at: float | None = None  # the client's last read; None if it has read everything
        self._taken = 0  # bytes that the client had read at its last read

    def client_address(self) -> tuple[str, int] | None:
        """The client's host and port; None if it is unknown, as on a Unix socket."""
        try:
            address = self._transport.get_extra_info("socket").getpeername()
        except OSError:  # the client has left
            return None
        return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None

    def write(self, data: bytes) -> None:
        """Writes data. Does nothing after a disconnect, where uvloop's transport would raise RuntimeError."""
        if not self.is_closing():
            self._written += len(data)
            self._transport.write(data)

    async def drain(self) -> None:
        """Waits until the client has read enough for more to be written, or has left."""
        while self.is_write_paused:
            await self._is_writable.wait()

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self._is_writable.clear()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self._is_writable.set()

    def close(self, more_input: bool) -> None:
        """Sends the written bytes. If `more_input` says that the client is still sending, its bytes are read
        and dropped for a moment: closing before they are read would reset the connection and lose the
        answer."""
        if self._closed_at is not None:
            return
        self._closed_at = self._loop.time()
        self._lingers = more_input and not self.is_tls
        if self._lingers and not self._transport.is_closing():
            self._transport.write_eof()
            self.is_read_paused = False
            self._transport.resume_reading()
        else:
            self._transport.close()

    def end_of_input(self) -> None:
        """Stops lingering, because the client will send nothing more."""
        if self._lingers:
            self._lingers = False
            self._transport.close()

    def is_closing(self) -> bool:
        return self._closed_at is not None or self._transport.is_closing()

    def pause_reading(self) -> None:
        if not self.is_read_paused and not self.is_closing():
            self.is_read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_read_paused and not self.is_closing():
            self.is_read_paused = False
            self._transport.resume_reading()

    def rest_from_reading(self) -> None:
        """Reads nothing more in this turn of the event loop. Otherwise a client that sends fast would be read
        32 times in a row (`uv__read` in libuv)."""
        if not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_soon(self._end_rest)

    def _end_rest(self) -> None:
        if not self.is_read_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def check(self, now: float) -> None:
        """Ends the connection if the client does not read the answer, or does not stop sending."""
        left = self._transport.get_write_buffer_size()
        if self._closed_at is not None and self.is_tls:
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
