"""Messages over a socket: the length in four bytes, then the bytes."""

from __future__ import annotations

import socket
import struct

LENGTH = struct.Struct("<I")


def framed(message: bytes) -> bytes:
    return LENGTH.pack(len(message)) + message


def send(channel: socket.socket, message: bytes) -> None:
    """Sends one message; blocks until all is sent."""
    channel.sendall(framed(message))


def receive(channel: socket.socket) -> bytes:
    """The next message; blocks for it. Raises EOFError when the other end is closed."""
    (length,) = LENGTH.unpack(_exactly(channel, LENGTH.size))
    return _exactly(channel, length)


def _exactly(channel: socket.socket, length: int) -> bytes:
    parts = []
    while length:
        part = channel.recv(min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
