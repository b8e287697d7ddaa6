"""The tokenizer process's connection to the schedulers: sends requests and distributes the answers.

One loop receives, and one dictionary maps a request id to its choice; requests and tokens need no tasks.
`Engine` uses it too, in the caller's own process, on any asyncio loop, without HTTP.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias

import zmq
import zmq.asyncio

from ....runtime.api_keys import ApiKey
from ....runtime.errors import RequestError
from ....runtime.messages import (
    Accepted,
    Adapter,
    AdapterChanged,
    AdapterList,
    CacheDropped,
    CacheReport,
    Drain,
    ForgetPrompts,
    FromTokenizer,
    Generate,
    GiveUp,
    Load,
    Message,
    ModelReady,
    ModelState,
    NewKeys,
    NodeTokens,
    Outputs,
    PeerDown,
    PeerResponds,
    PeerUp,
    PinFits,
    PrefixPinned,
    PromptExplained,
    QueryRecords,
    QueryRefused,
    QueryRequests,
    QueryStats,
    RecordList,
    Refused,
    RememberReply,
    ReplicaReport,
    RequestList,
    Stats,
    TokenizerInbox,
)
from ....runtime.processes.async_inbox import AsyncInbox
from ....runtime.processes.sockets import (
    ANY_EPOCH,
    Outbox,
    tokenizer_address,
)
from .connections import Connection, Connections
from .generation import Generation
from .merging import merge_request_lists
from .model_use import ModelHold, ModelUse
from .questions import Answer, Questions

LOAD_SECONDS = 600.0
"""longest wait of a request for a model that is being loaded"""
STATS_TIMEOUT_SECONDS = 2.0
RECORDS_TIMEOUT_SECONDS = 1.0
EngineState: TypeAlias = Literal["ready", "not responding", "starting", "restarting", "unloaded", "draining"]


class Choice(NamedTuple):
    generation: Generation
    number: int


class Placement(Protocol):
    """Decides outside the client which replica computes a generation."""

    @property
    def replicas(self) -> int:
        """The number of the server's replicas, those that are down too."""

    def place(self, generation: Generation) -> None:
        """Sends an open generation later, by `EngineClient.send_to`. It may be on its way already."""

    def end(self, generation: Generation) -> None:
        """Notes that a request has ended, also one that was never placed."""


class ReplicaStats(NamedTuple):
    """The counters of a replica. With several replicas, `backlog_s` is in how many seconds it would begin a
    new prompt."""

    replica: int
    epoch: int
    model: ModelReady
    stats: Stats
    backlog_s: float = 0.0


class EngineClient:
    """The connections to the replicas that are up. `model` describes the model, None before the first replica
    was up; `adapters` are those that requests may use, by name; `epoch` is the epoch of the last replica.

    With several replicas, `Router` chooses that of a request, to which all messages about it go; questions go
    to all replicas, and their answers are merged.

    `informed` is set once the supervisor has said whether a replica is up, or has asked to drain, and
    `knows_replica` once a replica has been up. `drain_requested` is set when the supervisor asks the process
    to finish its open requests, and `idle` while no request is open. `on_new_keys` is called with the known
    API keys when they change. `on_shared` is called with messages of the other tokenizer processes; `clients`
    is the number of all. `read_records` returns this process's records of the requests of a key. `use` is
    None if the model is loaded as long as the server runs. With a `placement`, that decides where requests
    go which name no replica.
    """

    def __init__(
        self,
        directory: Path,
        client: int,
        clients: int = 1,
        replicas: int = 1,
        use: ModelUse | None = None,
        placement: Placement | None = None,
    ) -> None:
        self.client = client
        self.directory = directory
        self.use = use
        self.loading = 0
        """how many requests wait until the model is loaded"""
        self.on_shared: Callable[[FromTokenizer], None] = lambda message: None
        self.on_new_keys: Callable[[tuple[ApiKey, ...]], None] = lambda keys: None
        self.read_records: Callable[[str | None], bytes] = lambda owner: b'{"recent":[],"failed":[]}'
        self.epoch = ANY_EPOCH
        self.informed = asyncio.Event()
        self.knows_replica = asyncio.Event()
        self.drain_requested = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._inbox: AsyncInbox[TokenizerInbox] = AsyncInbox(
            zmq.asyncio.Context(self._context),
            tokenizer_address(directory, client),
            TokenizerInbox,
            ANY_EPOCH,
        )
        self._up = Connections(self._context, directory, client, replicas)
        self._others = {
            other: Outbox(self._context, tokenizer_address(directory, other), ANY_EPOCH)
            for other in range(clients)
            if other != client
        }
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # the id of the event loop's thread
        self._choices: dict[str, Choice] = {}
        self._questions = Questions()
        self._hold: ModelHold | None = None  # while a request is open, if the model may be unloaded
        self._placement = placement

    @property
    def replicas(self) -> int:
        """A bound: the numbers of all replicas are smaller."""
        return self._up.replicas

    def count_replicas(self) -> int:
        """The number of the server's replicas, those that are down too."""
        return self._up.replicas if self._placement is None else self._placement.replicas

    @property
    def model(self) -> ModelReady | None:
        return self._up.model

    @property
    def adapters(self) -> dict[str, Adapter]:
        return self._up.adapters

    @property
    def is_up(self) -> bool:
        """Whether a replica is up."""
        return bool(self._up)

    @property
    def is_loaded(self) -> bool | None:
        """Whether the model is loaded; None if it is never unloaded."""
        return None if self.use is None else self.use.state == "loaded"

    @property
    def numbers_up(self) -> list[int]:
        """The numbers of the replicas that are up."""
        return [connection.number for connection in self._up]

    @property
    def state(self) -> EngineState:
        """What the process knows of the model. A process that replaces a dead one begins with `starting`."""
        if self.drain_requested.is_set():
            return "draining"
        if not self._up and self.use is not None and self.use.state == "unloaded":
            return "unloaded"
        if not self._up:
            return "restarting" if self.knows_replica.is_set() else "starting"
        return "ready" if self._up.responds else "not responding"

    def check_serving(self) -> ModelReady:
        """The description of the model, if it takes requests: those that hold a model which is not up wait
        until it is. Raises a 503 `RequestError` otherwise."""
        if self.drain_requested.is_set():
            raise shutting_down()
        if self.use is not None and self._is_awaited:
            self.use.check()
        elif self._is_unloaded:
            raise _unavailable(
                "The model is not loaded; a request that generates loads it.", "model_not_loaded"
            )
        if self.model is None or not (self._up or self._is_awaited):
            raise _starting()
        return self.model

    def check_responding(self) -> None:
        """Raises a 503 `RequestError` unless the model is up and responds, or was unloaded."""
        if self._is_unloaded:
            return
        self.check_serving()
        if not self._up:
            raise _starting()
        if not self._up.responds:
            raise _unavailable(
                "The model does not respond; it is ended and started again unless it soon does.",
                "model_not_responding",
            )

    @property
    def would_respond(self) -> bool:
        """Whether a request would be answered now, or once the model is loaded again."""
        return self._is_unloaded or (self._up.responds and not self.drain_requested.is_set())

    @property
    def _is_unloaded(self) -> bool:
        """Whether the next request loads the model."""
        return self.use is not None and self.use.state == "unloaded" and not self.drain_requested.is_set()

    @property
    def _is_awaited(self) -> bool:
        """Whether requests wait until the model is up."""
        return self.use is not None and self.use.is_held

    async def load(self) -> None:
        """Waits until the model can take requests; whoever calls this holds the model. Raises `RequestError`
        if it can't be loaded, or not in time."""
        if self.use is None:
            return
        self.loading += 1
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                while not self._up and not self.drain_requested.is_set():
                    self.use.check()
                    self.use.changed.clear()
                    await self.use.changed.wait()
        except TimeoutError:
            raise _unavailable(
                f"The model was not loaded within {LOAD_SECONDS:.0f} seconds.", "model_not_loaded"
            ) from None
        finally:
            self.loading -= 1

    def start(self, requests: Sequence[Generate], replica: int | None = None) -> Generation:
        """Send a request's choices, to the given replica if one is named. No open request may have their ids.
        While the model is being loaded, the choices of a request that holds it wait. Raises a 503
        `RequestError` if no replica is up and none is awaited, or the named one is down."""
        self.check_serving()
        named = None if replica is None else self._up.find(replica)
        if named is None and replica is not None:
            raise _unavailable("A replica is starting again; try again in a moment.", "model_not_ready")
        generation = Generation(requests, can_continue=self._up.router is not None)
        self.idle.clear()
        if self.use is not None and self._hold is None:
            self._hold = self.use.hold()
        for index, request in enumerate(requests):
            self._choices[request.request] = Choice(generation, index)
        if self._up:
            self._place(generation, named)
        return generation

    def choose(self, generation: Generation, replicas: Collection[int]) -> int | None:
        """Chooses one of the given replicas for a generation; None if all of them are down."""
        return self._up.choose_among(generation.requests, replicas)

    def send_to(self, generation: Generation, replica: int) -> bool:
        """Sends a generation that has no replica yet. Returns False if the replica is down."""
        connection = self._up.find(replica)
        if connection is not None and generation.is_open and generation.replica is None:
            self._send(generation, connection)
        return connection is not None

    def measure_load(self, replica: int) -> Load:
        """The work that a replica has, with what is on its way to it."""
        return self._up.measure_load(replica)

    def forget(self, generation: Generation) -> None:
        """Abort the choices that still run, and drop their later outputs."""
        generation.close()
        if self._placement is not None:
            self._placement.end(generation)
        for request in generation.requests:
            self._choices.pop(request.request, None)
            if self._up.router is not None:
                self._up.router.note_end(request.request)
        if not self._choices:
            self.idle.set()
            if self._hold is not None:
                self._hold.end()
                self._hold = None

    @property
    def open_requests(self) -> int:
        return len({choice.generation for choice in self._choices.values()})

    async def stats(self) -> list[ReplicaStats]:
        """The counters of the replicas that answer."""
        asked = list(self._up)
        answers = await self.ask_all(lambda query: QueryStats(self.client, query), STATS_TIMEOUT_SECONDS)
        return [
            ReplicaStats(each.number, each.epoch, each.model, answer, self._up.measure_backlog(each.number))
            for each in asked
            if isinstance(answer := answers[each.number], Stats)
        ]

    async def list_requests(self, tenant: str | None) -> RequestList | None:
        """The open requests of a tenant, or of all; None if no scheduler answers."""
        answers = await self.ask_all(
            lambda query: QueryRequests(self.client, query, tenant), STATS_TIMEOUT_SECONDS
        )
        return merge_request_lists([each for each in answers.values() if isinstance(each, RequestList)])

    async def list_records(self, owner: str | None) -> list[bytes]:
        """The records of all tokenizer processes that answer in time."""
        asked = [
            self._questions.ask(
                lambda query: QueryRecords(self.client, query, owner), other.send, RECORDS_TIMEOUT_SECONDS
            )
            for other in self._others.values()
        ]
        answers = await asyncio.gather(*asked)
        others = [answer.records for answer in answers if isinstance(answer, RecordList)]
        return [self.read_records(owner), *others]

    async def ask_all(self, question: Callable[[int], Message], seconds: float) -> dict[int, Answer | None]:
        """Sends the message that `question` makes from a number to all replicas that are up. Returns their
        answers by the replica's number, None for those that don't come in time."""
        return await self._up.ask_all(question, seconds)

    async def ask(self, question: Callable[[int], Message], seconds: float, replica: int) -> Answer | None:
        """The answer of one replica; None if none comes in time or the replica is down."""
        connection = self._up.find(replica)
        return None if connection is None else await connection.ask(question, seconds)

    def find_replica(self, request: Generate) -> int:
        """The replica that has most of the request's prompt. Raises a 503 `RequestError` while none is up."""
        self.check_serving()
        if not self._up:
            raise _starting()
        return self._up.find_prompt(request)

    def share(self, message: FromTokenizer) -> None:
        """Sends a message to the other tokenizer processes. May be called from any thread."""
        if not self._others or self._loop is None:
            return
        if threading.get_ident() == self._thread:
            self._tell_others(message)
        else:
            self._loop.call_soon_threadsafe(self._tell_others, message)

    def tell(self, message: Message) -> None:
        """Sends a message that gets no answer to all replicas. It is lost to those that are down."""
        for connection in self._up:
            connection.send(message)

    async def run(self) -> None:
        """Receive until cancelled."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        while True:
            message = await self._inbox.receive()
            self._receive(message, is_late=self._inbox.has_more)

    def close(self) -> None:
        self._inbox.close()
        for connection in self._up:
            connection.close()
        for other in self._others.values():
            other.close(linger_ms=0)
        self._context.term()

    def _receive(self, message: TokenizerInbox, *, is_late: bool) -> None:
        match message:
            case Outputs():
                self._deliver(message, is_late)
            case Accepted(request, left_out, allowances):
                if self._up.router is not None:
                    self._up.router.note_accepted(request)
                if choice := self._choices.get(request):
                    choice.generation.answer(choice.number, left_out, allowances)
            case Refused():
                self._refuse(message)
            case QueryRecords(client, query, owner):
                self._others[client].send(RecordList(query, self.read_records(owner)))
            case (
                Stats()
                | RequestList()
                | RecordList()
                | CacheReport()
                | CacheDropped()
                | PinFits()
                | PrefixPinned()
                | PromptExplained()
                | NodeTokens()
                | QueryRefused()
                | AdapterChanged()
            ):
                self._questions.answer(message)
                self._up.answer(message)
            case AdapterList(adapters):
                self._up.take_adapters(self._inbox.sender, adapters)
            case PeerUp():
                self._peer_up(message)
                self.informed.set()
                if self.use is not None:
                    self.use.changed.set()
            case ModelState():
                self._note_state(message)
            case PeerDown(role, _, replica):
                if role == "replica":
                    self._peer_down(replica)
                    self.informed.set()
            case PeerResponds(responds, replica):
                if (connection := self._up.find(replica)) is not None:
                    connection.responds = responds
            case ReplicaReport():
                self._up.take_report(self._inbox.sender, message)
            case RememberReply() | ForgetPrompts():
                self.on_shared(message)
            case NewKeys(keys):
                self.on_new_keys(keys)
            case Drain():
                self.drain_requested.set()
                self.informed.set()
                if self.use is not None:
                    self.use.changed.set()
            case GiveUp():
                for choice in list(self._choices.values()):
                    if choice.generation.is_open:
                        choice.generation.end(shutting_down())

    def _deliver(self, outputs: Outputs, is_late: bool) -> None:
        now, router = time.monotonic(), self._up.router
        for output in outputs.items:
            choice = self._choices.get(output.request)
            if choice is not None:
                if router is not None and output.cached_tokens is not None:
                    router.note_end(output.request)
                generation, number = choice
                generation.arrive(number, output, now, is_late=is_late)

    def _refuse(self, message: Refused) -> None:
        choice = self._choices.get(message.request)
        if choice is not None:
            error = RequestError(
                message.message,
                status=message.status,
                param=message.param,
                code=message.code,
                retry_after=message.retry_after,
                allowances=message.allowances,
            )
            choice.generation.refuse(choice.number, error)

    def _peer_up(self, message: PeerUp) -> None:
        self._peer_down(message.replica)
        self._up.open(message)
        self.epoch = message.epoch
        self._inbox.move_to(*(each.epoch for each in self._up))
        self.knows_replica.set()
        for generation in self._open_generations(None):
            self._place(generation)

    def _peer_down(self, replica: int) -> None:
        if self._up.find(replica) is None:
            return
        self._up.close(replica)
        self._inbox.move_to(*(each.epoch for each in self._up))
        for generation in self._open_generations(replica):
            if not generation.lose_replica() or (generation.token_left and not self._up):
                generation.fail(_unavailable("The model stopped while it answered.", "model_died"))
            elif self._up:
                self._place(generation)

    def _note_state(self, message: ModelState) -> None:
        """Notes whether the model is loaded. Requests that wait for it end if it can't be."""
        error = None if self.use is None else self.use.take(message)
        if error is not None:
            for generation in self._open_generations(None):
                generation.fail(error)

    def _open_generations(self, replica: int | None) -> set[Generation]:
        """The open generations at a replica; None: those that wait for one."""
        found = {choice.generation for choice in self._choices.values() if choice.generation.is_open}
        return {generation for generation in found if generation.replica == replica}

    def _place(self, generation: Generation, named: Connection | None = None) -> None:
        """Sends a generation to the named replica or the best one, or leaves that to the placement."""
        if self._placement is not None and named is None:
            self._placement.place(generation)
        else:
            self._send(generation, named or self._up.choose(generation.requests))

    def _send(self, generation: Generation, connection: Connection) -> None:
        """Sends the open choices of a generation to a replica: for the first time, or after the death of
        another one."""
        generation.move(connection.number, connection.send)
        to_send = generation.choices_to_send
        self._up.note_route(to_send, connection)
        for request in to_send:
            connection.send(request)

    def _tell_others(self, message: Message) -> None:
        for other in self._others.values():
            other.send(message)


def shutting_down() -> RequestError:
    return _unavailable("The server is shutting down.", "shutting_down")


def _starting() -> RequestError:
    return _unavailable("The model is starting; try again in a moment.", "model_not_ready")


def _unavailable(message: str, code: str) -> RequestError:
    return RequestError(message, status=503, code=code)
