"""Messages over a socket or a pipe: the length in four bytes, then the bytes."""

from __future__ import annotations

import socket
import struct
from typing import IO

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


def write_frame(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(LENGTH.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def read_frame(pipe: IO[bytes], most: int = 2**32) -> bytes:
    """The next message; blocks for it. Raises EOFError when the other end is closed, ValueError beyond
    `most`."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (length,) = LENGTH.unpack(head)
    if length > most:
        raise ValueError(f"a message of {length} bytes, of which the most are {most}")
    message = pipe.read(length)
    if len(message) < length:
        raise EOFError
    return message
