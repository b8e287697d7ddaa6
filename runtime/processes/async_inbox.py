"""A ZeroMQ inbox for processes with an asyncio loop.

It is not in `sockets.py`: the scheduler and model processes import that module and need no asyncio.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar, cast

import zmq
import zmq.asyncio

from .sockets import ANY_EPOCH, MessageDecoder

MAX_IN_A_ROW = 64
T = TypeVar("T")


class AsyncInbox(Generic[T]):
    """Receives on an asyncio loop. The epochs change when a peer starts again. `has_more`: whether another
    message was already waiting when the last one was received."""

    def __init__(self, context: zmq.asyncio.Context, address: str, kind: object, epoch: int) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        self._decoder: MessageDecoder[T] = MessageDecoder(kind, epoch)
        self.has_more = False
        self._in_a_row = 0

    def move_to(self, *epochs: int) -> None:
        """From now on, receives messages of these epochs, beside those of the supervisor."""
        self._decoder.epochs = (*epochs, ANY_EPOCH)

    @property
    def sender(self) -> int:
        """The epoch of the last message."""
        return self._decoder.sender

    async def receive(self) -> T:
        """Waits for the next message. Before it is received, the event loop runs other tasks; while messages
        are queued, it does so only before every `MAX_IN_A_ROW`th message."""
        while True:
            if not self.has_more or self._in_a_row == MAX_IN_A_ROW:
                self._in_a_row = 0
                await asyncio.sleep(0)  # receiving a message that is already there does not yield to it
            self._in_a_row += 1
            message = self._decoder.decode(await self._socket.recv_multipart())
            self.has_more = bool(cast(int, self._socket.get(zmq.EVENTS)) & zmq.POLLIN)
            if message is not None:
                return message

    def close(self) -> None:
        self._socket.close(linger=0)
