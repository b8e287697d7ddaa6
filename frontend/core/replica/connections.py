"""The connections of a tokenizer process to the replicas that are up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import zmq

from ....runtime.messages import (
    Adapter,
    EndLease,
    Generate,
    Load,
    Message,
    ModelReady,
    PeerUp,
    ReplicaReport,
    WatchAdapters,
    WatchReplica,
)
from ....runtime.processes.sockets import Outbox, Replica
from .merging import list_common_adapters
from .questions import Answer, Questions
from .router import Router


class Connection:
    """Sends to one replica's scheduler. `adapters` are those that the scheduler lists."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, up: PeerUp) -> None:
        self.number = up.replica
        self.epoch = up.epoch
        self.model: ModelReady = up.ready
        self.responds = True
        self.questions = Questions()
        self.adapters: list[Adapter] = []
        scheduler = Replica(directory, up.epoch, up.replica).scheduler
        self._outbox: Outbox | None = Outbox(context, scheduler, up.epoch)

    def send(self, message: Message) -> None:
        """Sends a message. It is lost once the connection is closed: a request whose replica has died may
        still end, before another replica is up."""
        if self._outbox is not None:
            self._outbox.send(message)

    async def ask(self, question: Callable[[int], Message], seconds: float) -> Answer | None:
        """Sends the message that `question` makes from a number. Returns None if no answer comes in time."""
        return await self.questions.ask(question, self.send, seconds)

    def close(self, linger_ms: int = 500) -> None:
        self.questions.give_up()
        if self._outbox is not None:
            self._outbox.close(linger_ms)
            self._outbox = None


class Connections:
    """A connection for each of the server's `replicas` that is up. With several replicas, a `Router` chooses
    that of a request.

    `model` describes the model, None before the first replica was up; `adapters` are those that requests may
    use, by name.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], directory: Path, client: int, replicas: int
    ) -> None:
        self.replicas = replicas
        self.model: ModelReady | None = None
        self.adapters: dict[str, Adapter] = {}
        self.router: Router | None = None  # None for a single replica, or before the first was up
        self._context = context
        self._directory = directory
        self._client = client
        self._up: dict[int, Connection] = {}  # by the replica's number, in its order
        self._knows_adapters = False

    def __bool__(self) -> bool:
        """Whether a replica is up."""
        return bool(self._up)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._up.values()))

    @property
    def responds(self) -> bool:
        return any(connection.responds for connection in self)

    def find(self, replica: int) -> Connection | None:
        """The connection to a replica; None if it is not up."""
        return self._up.get(replica)

    def open(self, up: PeerUp) -> None:
        """Connects to a replica that is up now, and tells it which adapters requests may use."""
        if self.replicas > 1 and self.router is None:
            self.router = Router(up.ready.page_size)
        connection = Connection(self._context, self._directory, up)
        self._up = dict(sorted({**self._up, up.replica: connection}.items()))
        self._describe_model()
        if self.router is not None:
            self.router.open(up.replica)
            connection.send(WatchReplica(self._client))
        if up.ready.adapter_places:
            known = list(self.adapters.values()) if self._knows_adapters else None
            connection.send(WatchAdapters(self._client, known))
            self.take_adapters(up.epoch, up.ready.adapters if known is None else known)

    def close(self, replica: int) -> None:
        """Closes the connection to a replica that is down."""
        self._up.pop(replica).close(linger_ms=0)
        self._describe_model()
        if self.router is not None:
            self.router.close(replica)

    def choose(self, requests: Sequence[Generate]) -> Connection:
        """The connection for the choices of a request. A replica that does not respond gets none, unless all
        are so."""
        if self.router is None:
            return next(iter(self._up.values()))
        chosen = self.choose_among(requests, self._up)
        assert chosen is not None, "a replica is up"
        return self._up[chosen]

    def choose_among(self, requests: Sequence[Generate], replicas: Collection[int]) -> int | None:
        """Chooses one of the given replicas for the choices of a request; None if all of them are down."""
        up = [each for each in self if each.number in replicas]
        if self.router is None or not up:
            return up[0].number if up else None
        responding = [each.number for each in up if each.responds]
        return self.router.choose(requests, responding or [each.number for each in up])

    def find_prompt(self, request: Generate) -> int:
        """The replica that has most of a request's prompt."""
        return next(iter(self._up)) if self.router is None else self.router.find(request, self._up)

    def note_route(self, requests: Sequence[Generate], chosen: Connection) -> None:
        """Notes that a request goes to the chosen replica. A lease with a key, which the request takes there,
        ends at the other replicas."""
        if self.router is None:
            return
        first = requests[0]
        for terms in first.leases:
            if terms.key and terms.most == 1 and first.namespace is not None:
                for other in self:
                    if other is not chosen:
                        other.send(EndLease(first.namespace, first.tenant, terms.key))
        self.router.send(requests, chosen.number)

    def take_report(self, epoch: int, report: ReplicaReport) -> None:
        """Takes the report of the replica of an epoch."""
        assert self.router is not None, "a replica reports only if there are several"
        for connection in self:
            if connection.epoch == epoch and not self.router.take(connection.number, report):
                connection.send(WatchReplica(self._client))

    def measure_backlog(self, replica: int) -> float:
        """Seconds until a replica would begin a new prompt; 0 with a single replica."""
        return 0.0 if self.router is None else self.router.measure_backlog(replica)

    def measure_load(self, replica: int) -> Load:
        """The last load that a replica reported, with what is on its way to it."""
        return Load() if self.router is None else self.router.measure_load(replica)

    def take_adapters(self, epoch: int, adapters: list[Adapter]) -> None:
        """Takes the adapters of the replica of an epoch. Requests may use those that all replicas have."""
        self._knows_adapters = True
        for connection in self:
            if connection.epoch == epoch:
                connection.adapters = adapters
        self.adapters = list_common_adapters([each.adapters for each in self])

    def answer(self, message: Answer) -> None:
        """Gives an answer to its question."""
        for connection in self._up.values():
            connection.questions.answer(message)

    async def ask_all(self, question: Callable[[int], Message], seconds: float) -> dict[int, Answer | None]:
        """Sends the message that `question` makes from a number to all replicas that are up. Returns their
        answers by the replica's number, None for those that don't come in time."""
        asked = list(self)
        if len(asked) == 1:
            return {asked[0].number: await asked[0].ask(question, seconds)}
        answers = await asyncio.gather(*(each.ask(question, seconds) for each in asked))
        return {each.number: answer for each, answer in zip(asked, answers, strict=True)}

    def _describe_model(self) -> None:
        """Takes the description by which all replicas can serve: the one with the shortest context."""
        models = [each.model for each in self]
        self.model = min(models, key=lambda model: model.max_model_len, default=self.model)
