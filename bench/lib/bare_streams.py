"""The least that a process can do for streams: it writes a prepared event to each socket in a step.

What this costs is the floor of `api_cost.py`: no token is decoded and no event is made.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

import zmq

TEXT = b" fox jumps over"
EVENT = b'data: {"choices":[{"text":"%s","index":0,"finish_reason":null}]}'.ljust(220) % TEXT + b"\n\n"
MARK = b'"text":"'
LAST = b"last"


def write_events(directory: Path, listener: socket.socket) -> None:
    """Runs the process that writes to the sockets.

    In each round, the first message holds the number of streams, and the answer says that all have connected.
    Each further message stands for one step; the last one is LAST.
    """
    inbox: zmq.Socket[bytes] = zmq.Context().socket(zmq.PAIR)
    inbox.bind(_address(directory))
    while True:
        streams = [listener.accept()[0] for _ in range(int(inbox.recv()))]
        for stream in streams:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.recv(1 << 16)  # the request
        inbox.send(b"connected")
        message = b""
        while message != LAST:
            message = inbox.recv()
            for stream in streams:
                stream.sendall(EVENT)
        for stream in streams:
            stream.close()


class BareSource:
    """Sends the steps, as `api_cost.TokenSource` does."""

    def __init__(self, directory: Path, tokens: int) -> None:
        self._outbox: zmq.Socket[bytes] = zmq.Context().socket(zmq.PAIR)
        self._outbox.connect(_address(directory))
        self._tokens = tokens
        self.sent_at: list[float] = []

    def wait_for(self, requests: int) -> None:
        self._outbox.send(str(requests).encode())
        self._outbox.recv()

    def characters(self, number: int) -> int:
        """The number of characters in the text of step `number`."""
        return len(TEXT)

    def step(self, number: int) -> None:
        self.sent_at.append(time.perf_counter())
        self._outbox.send(LAST if number == self._tokens - 1 else b"step")


def _address(directory: Path) -> str:
    return f"ipc://{directory}/bare"
