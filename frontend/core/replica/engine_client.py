"""The tokenizer process's connection to the scheduler: sends requests and distributes the answers.

One loop receives, and one dictionary maps a request id to its choice; requests and tokens need no tasks.
`Engine` uses it too, in the caller's own process, on any asyncio loop, without HTTP.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

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
    Message,
    ModelReady,
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
    RequestList,
    Stats,
    TokenizerInbox,
    WatchAdapters,
)
from ....runtime.processes.async_inbox import AsyncInbox
from ....runtime.processes.sockets import (
    ANY_EPOCH,
    Outbox,
    Replica,
    tokenizer_address,
)
from .generation import Generation
from .questions import Answer, Questions

STATS_TIMEOUT_SECONDS = 2.0
RECORDS_TIMEOUT_SECONDS = 1.0
EngineState: TypeAlias = Literal["ready", "not responding", "starting", "restarting", "draining"]


class Choice(NamedTuple):
    generation: Generation
    number: int


class EngineClient:
    """The connection to the replica that is up. `model` describes the last model, None before the first;
    `adapters` are those that requests may use, by name; `epoch` is the epoch of the last replica.

    `informed` is set once the supervisor has said whether the replica is up, or has asked to drain, and
    `knows_replica` once a replica has been up. `drain_requested` is set when the supervisor asks the process
    to finish its open requests, and `idle` while no request is open. `on_new_keys` is called with the known
    API keys when they change. `on_shared` is called with messages of the other tokenizer processes; `clients`
    is the number of all. `read_records` returns this process's records of the requests of a key.
    """

    def __init__(self, directory: Path, client: int, clients: int = 1) -> None:
        self.client = client
        self.directory = directory
        self.on_shared: Callable[[FromTokenizer], None] = lambda message: None
        self.on_new_keys: Callable[[tuple[ApiKey, ...]], None] = lambda keys: None
        self.read_records: Callable[[str | None], bytes] = lambda owner: b'{"recent":[],"failed":[]}'
        self.model: ModelReady | None = None
        self.adapters: dict[str, Adapter] = {}
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
        self._outbox: Outbox | None = None
        self._others = {
            other: Outbox(self._context, tokenizer_address(directory, other), ANY_EPOCH)
            for other in range(clients)
            if other != client
        }
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # the id of the event loop's thread
        self._responds = True
        self._choices: dict[str, Choice] = {}
        self._questions = Questions()
        self._knows_adapters = False

    @property
    def is_up(self) -> bool:
        return self._outbox is not None

    @property
    def state(self) -> EngineState:
        """What the process knows of the model. A process that replaces a dead one begins with `starting`."""
        if self.drain_requested.is_set():
            return "draining"
        if self._outbox is None:
            return "restarting" if self.knows_replica.is_set() else "starting"
        return "ready" if self._responds else "not responding"

    def check_serving(self) -> ModelReady:
        """The running model's description. Raises a 503 `RequestError` if no model can take requests."""
        if self.drain_requested.is_set():
            raise shutting_down()
        if self._outbox is None or self.model is None:
            raise _unavailable("The model is starting; try again in a moment.", "model_not_ready")
        return self.model

    def check_responding(self) -> None:
        """Raises a 503 `RequestError` unless the model is up and responds."""
        self.check_serving()
        if not self._responds:
            raise _unavailable(
                "The model does not respond; it is ended and started again unless it soon does.",
                "model_not_responding",
            )

    def start(self, requests: Sequence[Generate]) -> Generation:
        """Send a request's choices. No open request may have their ids. Raises a 503 `RequestError` while
        the replica is down."""
        self.check_serving()
        generation = Generation(requests, self._send)
        self._send_all(generation)
        return generation

    def forget(self, generation: Generation) -> None:
        """Abort the choices that still run, and drop their later outputs."""
        generation.close()
        for request in generation.requests:
            self._choices.pop(request.request, None)
        if not self._choices:
            self.idle.set()

    @property
    def open_requests(self) -> int:
        return len({choice.generation for choice in self._choices.values()})

    async def stats(self) -> Stats | None:
        """The scheduler's counters; None if it doesn't answer."""
        answer = await self.ask(lambda query: QueryStats(self.client, query), STATS_TIMEOUT_SECONDS)
        return answer if isinstance(answer, Stats) else None

    async def list_requests(self, tenant: str | None) -> RequestList | None:
        """The open requests of a tenant, or of all; None if the scheduler doesn't answer."""
        answer = await self.ask(
            lambda query: QueryRequests(self.client, query, tenant), STATS_TIMEOUT_SECONDS
        )
        return answer if isinstance(answer, RequestList) else None

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

    async def ask(self, question: Callable[[int], Message], seconds: float) -> Answer | None:
        """Sends the message that `question` makes from a number. Returns None if no answer comes in time."""
        return None if self._outbox is None else await self._questions.ask(question, self._send, seconds)

    def share(self, message: FromTokenizer) -> None:
        """Sends a message to the other tokenizer processes. May be called from any thread."""
        if not self._others or self._loop is None:
            return
        if threading.get_ident() == self._thread:
            self._tell_others(message)
        else:
            self._loop.call_soon_threadsafe(self._tell_others, message)

    def tell(self, message: Message) -> None:
        """Sends a message that gets no answer. While the replica is down the message is lost."""
        self._send(message)

    async def run(self) -> None:
        """Receive until cancelled."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        while True:
            message = await self._inbox.receive()
            self._receive(message, is_late=self._inbox.has_more)

    def close(self) -> None:
        self._inbox.close()
        if self._outbox is not None:
            self._outbox.close()
        for other in self._others.values():
            other.close(linger_ms=0)
        self._context.term()

    def _receive(self, message: TokenizerInbox, *, is_late: bool) -> None:
        match message:
            case Outputs():
                self._deliver(message, is_late)
            case Accepted(request, left_out, allowances):
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
            case AdapterList(adapters):
                self._set_adapters(adapters)
            case PeerUp():
                self._peer_up(message)
                self.informed.set()
            case PeerDown(role):
                if role == "replica":
                    self._peer_down()
                    self.informed.set()
            case PeerResponds(responds):
                self._responds = responds
            case RememberReply() | ForgetPrompts():
                self.on_shared(message)
            case NewKeys(keys):
                self.on_new_keys(keys)
            case Drain():
                self.drain_requested.set()
                self.informed.set()
            case GiveUp():
                for generation in self._open_generations():
                    generation.end(shutting_down())

    def _deliver(self, outputs: Outputs, is_late: bool) -> None:
        now = time.monotonic()
        for output in outputs.items:
            choice = self._choices.get(output.request)
            if choice is not None:
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
        if self._outbox is not None:
            self._peer_down()
        self.model = message.ready
        self._responds = True
        self.epoch = message.epoch
        self._inbox.move_to(message.epoch)
        self._outbox = Outbox(self._context, Replica(self.directory, message.epoch).scheduler, message.epoch)
        if message.ready.adapter_places:
            known = list(self.adapters.values()) if self._knows_adapters else None
            self._send(WatchAdapters(self.client, known))
            if known is None:
                self._set_adapters(message.ready.adapters)
        self.knows_replica.set()
        for generation in self._open_generations():
            self._send_all(generation)

    def _set_adapters(self, adapters: Sequence[Adapter]) -> None:
        self._knows_adapters = True
        self.adapters = {adapter.name: adapter for adapter in adapters}

    def _peer_down(self) -> None:
        if self._outbox is not None:
            self._outbox.close(linger_ms=0)
            self._outbox = None
        self._inbox.move_to(ANY_EPOCH)
        self._questions.give_up()
        for generation in self._open_generations():
            if generation.can_restart():
                generation.restart()
            else:
                generation.fail(_unavailable("The model stopped while it answered.", "model_died"))

    def _open_generations(self) -> set[Generation]:
        return {choice.generation for choice in self._choices.values() if choice.generation.is_open}

    def _send_all(self, generation: Generation) -> None:
        self.idle.clear()
        for index, request in enumerate(generation.requests):
            self._choices[request.request] = Choice(generation, index)
            self._send(request)

    def _tell_others(self, message: Message) -> None:
        for other in self._others.values():
            other.send(message)

    def _send(self, message: Message) -> None:
        if self._outbox is not None:
            self._outbox.send(message)


def shutting_down() -> RequestError:
    return _unavailable("The server is shutting down.", "shutting_down")


def _unavailable(message: str, code: str) -> RequestError:
    return RequestError(message, status=503, code=code)
