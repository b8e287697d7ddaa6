"""Runs a request to its end, with a fresh attempt if the replica dies early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from ..replica.generation import Arrival, Generation
from ..work.caller import Caller
from ..work.fair_threads import FairThreads
from ..work.steps import Steps
from .reply import Piece, Reply

T = TypeVar("T")
P = TypeVar("P", covariant=True)
C = TypeVar("C", covariant=True)


class Attempt(Protocol[P, C]):
    """One attempt at a request. It turns the pieces of its reply into parts of the answer."""

    @property
    def reply(self) -> Reply: ...

    def take(self, pieces: Sequence[Piece]) -> P: ...

    def closing(self) -> C: ...


async def run_attempts(
    generation: Generation,
    begin: Callable[[], Attempt[P, C]],
    work: FairThreads,
    watch: Callable[[Arrival], None] = lambda arrival: None,
) -> AsyncIterator[tuple[Attempt[P, C], P]]:
    """Yields, for each batch of outputs, the current attempt and the part of the answer that it made.

    When the generation restarts, a fresh attempt begins. Outputs that may take long to read are read on
    another thread. Raises `RequestError` or `ClientGoneError`.
    """
    loop = asyncio.get_running_loop()
    number, attempt = generation.attempt, begin()
    while not attempt.reply.done:
        arrivals = await generation.next()
        if generation.attempt != number:
            number, attempt = generation.attempt, begin()
        for arrival in arrivals:
            watch(arrival)
        if attempt.reply.may_take_long(arrivals):
            part = await run_off_loop(work, partial(_take_and_remember, attempt, arrivals))
        else:
            part = attempt.take(attempt.reply.push(arrivals))
            if attempt.reply.has_ended_choices:
                loop.call_soon(attempt.reply.remember)  # after all streams have sent this step's tokens
        is_current = generation.attempt == number  # the replica may have died meanwhile
        if is_current:
            attempt.reply.end_stopped()
        if is_current or attempt.reply.done:
            yield attempt, part


def _take_and_remember(attempt: Attempt[P, C], arrivals: Sequence[Arrival]) -> P:
    part = attempt.take(attempt.reply.push(arrivals))
    attempt.reply.remember()
    return part


async def run_off_loop(work: FairThreads, make: Callable[[], T]) -> T:
    """The result of `make`, which runs on another thread."""

    def steps() -> Steps[T]:
        return make()
        yield

    return await work.run(Caller(), steps())
