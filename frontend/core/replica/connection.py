"""The connection of a tokenizer process to one replica that is up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import zmq

from ....runtime.messages import Adapter, Message, ModelReady, PeerUp
from ....runtime.processes.sockets import Outbox, Replica
from .questions import Answer, Questions


class Connection:
    """Sends to the replica's scheduler. `adapters` are those that the scheduler lists, by name."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, up: PeerUp) -> None:
        self.number = up.replica
        self.epoch = up.epoch
        self.model: ModelReady = up.ready
        self.responds = True
        self.questions = Questions()
        self.adapters: dict[str, Adapter] = {}
        scheduler = Replica(directory, up.epoch, up.replica).scheduler
        self._outbox = Outbox(context, scheduler, up.epoch)

    def send(self, message: Message) -> None:
        self._outbox.send(message)

    async def ask(self, question: Callable[[int], Message], seconds: float) -> Answer | None:
        """Sends the message that `question` makes from a number. Returns None if no answer comes in time."""
        return await self.questions.ask(question, self.send, seconds)

    def set_adapters(self, adapters: list[Adapter]) -> None:
        self.adapters = {adapter.name: adapter for adapter in adapters}

    def close(self, linger_ms: int = 500) -> None:
        self.questions.give_up()
        self._outbox.close(linger_ms)
