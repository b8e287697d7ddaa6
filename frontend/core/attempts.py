"""Runs a request to its end, with a fresh attempt if the replica dies early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from ...runtime.messages import Output
from .parts import Piece
from .replica.generation import Arrival, Generation
from .reply import Reply
from .work.caller import Caller
from .work.thread_pool import FairThreadPool, Steps

T = TypeVar("T")
P = TypeVar("P", covariant=True)
W = TypeVar("W", contravariant=True)
C = TypeVar("C", covariant=True)


class Answer(Protocol[P, C]):
    """The answer of one attempt at a request. It turns the pieces of its reply into parts of the answer."""

    @property
    def reply(self) -> Reply: ...

    def take(self, pieces: Sequence[Piece]) -> P: ...

    def closing(self) -> C: ...


class Stream(Protocol):
    """How an API writes the events of a stream.

    `around_text` returns the bytes before and after the JSON of a text that is the only addition to a choice,
    None if the addition needs `push`. `end` returns the last events.
    """

    def around_text(self, choice: int) -> tuple[bytes, bytes] | None: ...

    def push(self, piece: Piece) -> bytes: ...

    def end(self) -> bytes: ...


class StreamedAnswer:
    """Sends the events of an API's stream as they come."""

    def __init__(self, reply: Reply, stream: Stream) -> None:
        self.reply = reply
        self._stream = stream

    def take(self, pieces: Sequence[Piece]) -> bytes:
        return b"".join([self._write(piece) for piece in pieces])

    def _write(self, piece: Piece) -> bytes:
        """Most pieces only add text to a choice, and are written without the API's own code."""
        if piece.is_text_alone and (around := self._stream.around_text(piece.choice)) is not None:
            return msgspec.json.encode(piece.content).join(around)
        return self._stream.push(piece)

    def closing(self) -> bytes:
        return self._stream.end()


class WholeAnswer:
    """Sends one body, which is made of the complete reply."""

    def __init__(self, reply: Reply, body: Callable[[Reply], bytes]) -> None:
        self.reply = reply
        self._body = body
        for choice in reply.choices:
            choice.collect()

    def take(self, pieces: Sequence[Piece]) -> bytes:
        return b""

    def closing(self) -> bytes:
        return self._body(self.reply)


class PartWriter(Protocol[W]):
    """Writes parts of an answer at once. A part is never empty; `is_ready`: `write` may be called now."""

    @property
    def is_ready(self) -> bool: ...

    def write(self, part: W) -> None: ...


async def run_attempts(
    generation: Generation,
    begin: Callable[[], Answer[P, C]],
    work: FairThreadPool,
    watch: Callable[[int, Output, float], None] = lambda choice, output, time: None,
    writer: PartWriter[P] | None = None,
) -> AsyncIterator[tuple[Answer[P, C], P]]:
    """Yields, for each batch of outputs, the current attempt and the next part of its answer.

    When the generation restarts, a fresh attempt begins. Outputs that may take long to read are read on
    another thread. With a `writer`, most outputs between the first and the last of a choice are written as
    they arrive, once all choices have begun, instead of being yielded. Raises `RequestError` or
    `ClientGoneError`.
    """
    loop = asyncio.get_running_loop()
    number, attempt = generation.attempt, begin()

    def take(index: int, output: Output, time: float) -> bool:
        choice = attempt.reply.choices[index]
        if writer is None or not writer.is_ready or not choice.is_quick(output):
            return False
        watch(index, output, time)
        part = attempt.take((choice.push(index, output),))
        if part:
            writer.write(part)
        return True

    while not attempt.reply.done:
        is_begun = writer is not None and generation.token_left and attempt.reply.has_begun
        arrivals = await generation.next(take if is_begun else None)
        if generation.attempt != number:
            number, attempt = generation.attempt, begin()
        for arrival in arrivals:
            watch(*arrival)
        if attempt.reply.may_take_long(arrivals):
            part = await run_off_loop(work, partial(_take_and_remember, attempt, arrivals))
        else:
            part = attempt.take(attempt.reply.push(arrivals))
            if attempt.reply.has_ended_choices:
                loop.call_soon(attempt.reply.remember)  # after all streams have sent this step's tokens
        is_current = generation.attempt == number  # False if the replica has died since
        if is_current:
            attempt.reply.end_stopped()
        if is_current or attempt.reply.done:
            yield attempt, part


def _take_and_remember(attempt: Answer[P, C], arrivals: Sequence[Arrival]) -> P:
    part = attempt.take(attempt.reply.push(arrivals))
    attempt.reply.remember()
    return part


async def run_off_loop(work: FairThreadPool, make: Callable[[], T]) -> T:
    """The result of `make`, which runs on another thread."""

    def steps() -> Steps[T]:
        return make()
        yield

    return await work.run(Caller(), steps())
