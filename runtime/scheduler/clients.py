"""Sends to the tokenizer processes; a slow one neither blocks the loop nor fills the memory."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from ..messages import Message
from ..processes.sockets import Outbox

MAX_UNREAD = 10_000  # messages, beside those that the peer's process has received


class Clients:
    """`connect` makes the outbox of a client when the first message is sent to it."""

    def __init__(self, connect: Callable[[int], Outbox]) -> None:
        self._connect = connect
        self._outboxes: dict[int, Outbox] = {}

    def send(self, messages: dict[int, list[Message]]) -> list[int]:
        """Returns the clients that read no more; their unread messages are lost."""
        stuck = []
        for client, its_messages in messages.items():
            if client not in self._outboxes:
                self._outboxes[client] = self._connect(client)
            try:
                for message in its_messages:
                    self._outboxes[client].send(message)
            except zmq.Again:
                self.forget(client)
                stuck.append(client)
        return stuck

    def forget(self, client: int) -> None:
        outbox = self._outboxes.pop(client, None)
        if outbox is not None:
            outbox.close(linger_ms=0)
