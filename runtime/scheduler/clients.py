"""Sends to the tokenizer processes."""

from __future__ import annotations

from collections.abc import Callable

from ..messages import Message
from ..processes.sockets import Outbox


class Clients:
    """`connect` makes the outbox of a client when the first message is sent to it."""

    def __init__(self, connect: Callable[[int], Outbox]) -> None:
        self._connect = connect
        self._outboxes: dict[int, Outbox] = {}

    def send(self, messages: dict[int, list[Message]]) -> None:
        for client, its_messages in messages.items():
            if client not in self._outboxes:
                self._outboxes[client] = self._connect(client)
            for message in its_messages:
                self._outboxes[client].send(message)

    def forget(self, client: int) -> None:
        """The client has died. Its unread messages are dropped."""
        outbox = self._outboxes.pop(client, None)
        if outbox is not None:
            outbox.close(linger_ms=0)
