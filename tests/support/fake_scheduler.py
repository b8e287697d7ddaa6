"""A scheduler that speaks the protocol and generates scripted tokens, one step at a time."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import zmq
import zmq.asyncio
from arbora.runtime.messages import (
    Abort,
    Accepted,
    CacheAnswer,
    CacheControl,
    CacheGroup,
    CheckPin,
    Drain,
    DropCache,
    ExplainPrompt,
    Finish,
    FinishReason,
    Generate,
    GiveUp,
    LeftOutKeyword,
    Logprobs,
    Message,
    ModelReady,
    OpenRequest,
    Output,
    Outputs,
    PeerDown,
    PeerUp,
    PinPrefix,
    Pooling,
    QueryCache,
    QueryNode,
    QueryRefused,
    QueryRequests,
    QueryStats,
    Refused,
    RequestList,
    SchedulerInbox,
    Stats,
    StoreCounts,
    Tokens,
    UnpinPrefix,
)
from arbora.runtime.processes.async_inbox import AsyncInbox
from arbora.runtime.processes.sockets import (
    ANY_EPOCH,
    Outbox,
    Replica,
    tokenizer_address,
)

PAGE_SIZE = 16
M = TypeVar("M", bound=Message)
Script = Callable[[Generate], Sequence[int]]
CacheScript = Callable[[CacheControl], CacheAnswer]


def packed(tokens: Sequence[int]) -> Tokens:
    return array("i", tokens).tobytes()


def unpacked(tokens: Tokens) -> list[int]:
    return array("i", tokens).tolist()


def no_cache(message: CacheControl) -> CacheAnswer:
    return QueryRefused(message.query, 500, "no answer is scripted", None, "unexpected")


async def one_turn() -> None:
    """Lets the other tasks of the event loop run."""
    await asyncio.sleep(0)


async def long_turn() -> None:
    """Waits until the reader has most likely read the step's outputs."""
    await asyncio.sleep(0.02)


def ready(vocab_size: int, context_length: int, pooling: Pooling | None = None) -> ModelReady:
    groups = [CacheGroup(2, None, 64, 1024)]
    return ModelReady(groups, PAGE_SIZE, context_length, 8, vocab_size, "cpu", pooling=pooling)


def scripted_vector(request: Generate, size: int) -> list[float]:
    """The prompt's length, its last token, the start of its second text, then ones: as many numbers as the
    vector has."""
    tokens = unpacked(request.prompt)
    return [float(len(tokens)), float(tokens[-1]), float(request.second), *[1.0] * size][:size]


@dataclass
class Row:
    """One request in decode. `tokens` are the rest of its script."""

    request: Generate
    tokens: list[int]
    sent: int = 0


@dataclass
class FakeScheduler:
    """`script` gives a request's tokens; `refuse` refuses it instead; `cache` answers for the cache. Of every
    grammar the keywords `left_out` are not enforced.

    Steps wait while `gate` is clear; with `pauses` a step that has rows clears it. `after_step` is awaited
    after each step with rows; by default steps rarely wait for the reader. `received` keeps every message, in
    order.
    """

    directory: Path
    epoch: int
    script: Script
    eos_tokens: Sequence[int]
    refuse: Callable[[Generate], Refused | None] = lambda request: None
    left_out: Sequence[LeftOutKeyword] = ()
    cache: CacheScript = no_cache
    cached_tokens: int = 0
    vector_size: int | None = None  # of a model that pools
    tokens_per_step: int = 1
    pauses: bool = False
    after_step: Callable[[], Awaitable[None]] = one_turn
    received: list[Message] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._inbox: AsyncInbox[SchedulerInbox] = AsyncInbox(
            zmq.asyncio.Context(self._context),
            Replica(self.directory, self.epoch).scheduler,
            SchedulerInbox,
            self.epoch,
        )
        self._outbox = Outbox(self._context, tokenizer_address(self.directory, 0), self.epoch)
        self._steps = 0
        self._work = asyncio.Event()
        self.gate.set()
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._step())]

    def of_kind(self, kind: type[M]) -> list[M]:
        return [message for message in self.received if isinstance(message, kind)]

    def send(self, message: Message) -> None:
        self._outbox.send(message)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._inbox.close()
        self._outbox.close()
        self._context.term()

    async def _receive(self) -> None:
        while True:
            message = await self._inbox.receive()
            self.received.append(message)
            match message:
                case Generate():
                    self._admit(message)
                case Abort(request) | Finish(request):
                    self.rows.pop(request, None)
                case (
                    QueryCache()
                    | DropCache()
                    | CheckPin()
                    | PinPrefix()
                    | UnpinPrefix()
                    | ExplainPrompt()
                    | QueryNode()
                ):
                    self.send(self.cache(message))
                case QueryRequests(_, query, tenant):
                    self.send(self._list_requests(query, tenant))
                case QueryStats(_, query):
                    counts = (len(self.rows), 0, 64, 2, 3, 1, 10, 30, 20, 30, 5, 1, 4, self._steps)
                    self.send(Stats(query, *counts, StoreCounts()))

    def _list_requests(self, query: int, tenant: str | None) -> RequestList:
        rows = [row for row in self.rows.values() if tenant in (None, row.request.tenant)]
        items = [
            OpenRequest(row.request.request, "decode", 1.0, len(row.request.prompt) // 4, 0, 0, row.sent)
            for row in rows
        ]
        return RequestList(query, len(rows), items)

    def _admit(self, request: Generate) -> None:
        refused = self.refuse(request)
        if refused is not None:
            self.send(refused)
            return
        self.send(Accepted(request.request, list(self.left_out)))
        self.rows[request.request] = Row(request, list(self.script(request)))
        self._work.set()

    async def _step(self) -> None:
        while True:
            await self._work.wait()
            await self.gate.wait()
            outputs = [self._output(row) for row in list(self.rows.values())]
            self._steps += 1
            if outputs:
                self.send(Outputs(outputs))
                if self.pauses:
                    self.gate.clear()
                await self.after_step()
            if not self.rows:
                self._work.clear()
            await one_turn()

    def _output(self, row: Row) -> Output:
        sampling = row.request.sampling
        tokens: list[int] = []
        finish: FinishReason | None = "length" if sampling.max_tokens == 0 else None
        stop_token: int | None = None
        while finish is None and len(tokens) < self.tokens_per_step:
            token = row.tokens.pop(0) if row.tokens else self.eos_tokens[0]
            tokens.append(token)
            stops = () if sampling.ignore_eos else self.eos_tokens
            if token in (*stops, *sampling.stop_token_ids):
                finish, stop_token = "stop", token
            elif row.sent + len(tokens) == sampling.max_tokens:
                finish = "length"
        first = row.sent == 0
        row.sent += len(tokens)
        if finish is not None:
            del self.rows[row.request.request]
        scored = unpacked(row.request.prompt)[sampling.first_scored :]
        return Output(
            row.request.request,
            packed(tokens),
            logprobs=scripted_logprobs(tokens, sampling.logprobs),
            finish=finish,
            stop_token=stop_token,
            cached_tokens=self.cached_tokens if first else None,
            prompt_logprobs=scripted_logprobs(scored, sampling.prompt_logprobs) if first else None,
            vector=None
            if self.vector_size is None
            else array("f", scripted_vector(row.request, self.vector_size)).tobytes(),
        )


def scripted_logprobs(tokens: Sequence[int], alternatives: int | None) -> Logprobs | None:
    """Token t has the log-probability −t / 100; its alternatives are t, t + 1, … with 1 less each."""
    if alternatives is None:
        return None
    return Logprobs(
        array("f", [-token / 100 for token in tokens]).tobytes(),
        packed([token + k for token in tokens for k in range(alternatives)]),
        array("f", [-token / 100 - k for token in tokens for k in range(alternatives)]).tobytes(),
    )


class FakeSupervisor:
    """Tells a tokenizer process of its peers."""

    def __init__(self, directory: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outbox = Outbox(self._context, tokenizer_address(directory, 0), ANY_EPOCH)

    def send(self, message: Message) -> None:
        self._outbox.send(message)

    def peer_up(self, epoch: int, model: ModelReady) -> None:
        self._outbox.send(PeerUp(epoch, model))

    def peer_down(self) -> None:
        self._outbox.send(PeerDown("replica"))

    def drain(self) -> None:
        self._outbox.send(Drain())

    def give_up(self) -> None:
        self._outbox.send(GiveUp())

    def close(self) -> None:
        self._outbox.close(linger_ms=0)
        self._context.term()
