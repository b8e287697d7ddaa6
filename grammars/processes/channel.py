"""Messages over a socket: the length in four bytes, then the bytes.

A forked process sends and receives with blocking calls. The scheduler has a `Channel` to a process that may
not answer; every call of the channel has a deadline.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque

LENGTH = struct.Struct("<I")


def frame(message: bytes) -> bytes:
    return LENGTH.pack(len(message)) + message


def send(channel: socket.socket, message: bytes) -> None:
    """Sends one message; blocks until all is sent."""
    channel.sendall(frame(message))


def receive(channel: socket.socket) -> bytes:
    """The next message; blocks for it. Raises EOFError when the other end is closed."""
    (length,) = LENGTH.unpack(_receive_exactly(channel, LENGTH.size))
    return _receive_exactly(channel, length)


def _receive_exactly(channel: socket.socket, length: int) -> bytes:
    parts = []
    while length:
        part = channel.recv(min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


class ChannelClosedError(Exception):
    """The other end is closed, or has sent an invalid message."""


class Channel:
    """The scheduler's end of a socket to a process, for one thread at a time.

    max_bytes: maximal bytes of a message from the process
    """

    def __init__(self, ours: socket.socket, max_bytes: int) -> None:
        ours.setblocking(False)
        self._max_bytes = max_bytes
        self._socket = ours
        self._unsent = bytearray()
        self._received = bytearray()
        self._messages: deque[bytes] = deque()
        self.is_closed = False

    def send(self, message: bytes) -> None:
        """Sends without blocking; a later call sends the rest. Raises ChannelClosedError."""
        self._unsent += frame(message)
        self._write()

    def receive(self, deadline_s: float) -> bytes:
        """The next message. Raises TimeoutError after `deadline_s`, or ChannelClosedError."""
        until = time.monotonic() + deadline_s
        while not self._messages:
            self._wait(until)
        return self._messages.popleft()

    def has_ended(self) -> bool:
        """Whether the other end is closed or has sent something, while no answer is due."""
        if self.is_closed:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.is_closed = True
        self._socket.close()

    def _wait(self, until: float) -> None:
        if self.is_closed:
            raise ChannelClosedError
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError
        if self._unsent:
            self._write()
        self._read()

    def _write(self) -> None:
        if self.is_closed:
            raise ChannelClosedError
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._fail()

    def _read(self) -> None:
        try:
            part = self._socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._fail()
        self._received += part
        while len(self._received) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._received)
            if length > self._max_bytes:
                self._fail()
            end = LENGTH.size + length
            if len(self._received) < end:
                return
            self._messages.append(bytes(self._received[LENGTH.size : end]))
            del self._received[:end]

    def _fail(self) -> None:
        self.close()
        raise ChannelClosedError
