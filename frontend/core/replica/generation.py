"""One request in the scheduler: its choices and the outputs that have arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from ....runtime.api_keys import Allowances
from ....runtime.errors import RequestError
from ....runtime.messages import (
    Abort,
    AwaitTools,
    Finish,
    Generate,
    LeftOutKeyword,
    Message,
    Output,
)
from ..work.caller import ClientGoneError

MAX_ATTEMPTS = 2


class Arrival(NamedTuple):
    """An output of choice number `choice` and when it came, in seconds of `time.monotonic`."""

    choice: int
    output: Output
    time: float


Take: TypeAlias = Callable[[int, Output, float], bool]
"""Gets the number of a choice, its output and when that came, as in `Arrival`. Returns whether it has handled
the output."""


def early_end(output: Output) -> RequestError:
    """The error of a reply whose last output says "error" or "abort"."""
    if output.error is None:
        return RequestError("The request was aborted.", status=500, code="abort")
    error = output.error
    return RequestError(error.message, status=error.status, param=error.param, code=error.code)


class Generation:
    """The choices of one request, each a `Generate` of its own.

    The engine client feeds it, and one consumer reads it with `accepted` and `next`. If its replica dies
    before a token has left the server, all choices are sent again: `attempt` grows, and the consumer must
    forget the outputs it has read. With `can_continue` the open choices of a reply that has begun are sent to
    another replica, which goes on after their outputs; the consumer notices nothing. `left_out`, and the
    `allowances` of a key with limits, are known once all choices are accepted.
    """

    def __init__(self, requests: Sequence[Generate], *, can_continue: bool = False) -> None:
        self.requests = requests
        self.replica: int | None = None  # None while no replica is up for it
        self.attempt = 1
        self._deaths = 0
        self._outputs = [bytearray() for _ in requests] if can_continue else None
        self.token_left = False
        self.left_out: Sequence[LeftOutKeyword] = ()
        self.allowances: Allowances | None = None
        self._send: Callable[[Message], None] = _drop
        self._open = set(range(len(requests)))
        self._unanswered = set(self._open)
        self._arrivals: list[Arrival] = []
        self._failure: Exception | None = None
        self._take: Take | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def accepted(self) -> None:
        """Wait until the scheduler has accepted every choice. Raises `RequestError` or `ClientGoneError`."""
        while self._unanswered and self._failure is None:
            await self._wait()
        if self._failure is not None:
            raise self._raisable(self._failure)

    async def next(self, take: Take | None = None) -> list[Arrival]:
        """Waits for outputs, and returns all since the last call. Raises `RequestError` or `ClientGoneError`.

        Meanwhile each output is passed to `take`, if there is one. Outputs that `take` has handled are not
        returned. An exception that `take` raises is raised here.
        """
        self._take = take
        try:
            while not self._arrivals and self._failure is None:
                await self._wait()
        finally:
            self._take = None
        if self._failure is not None:
            raise self._raisable(self._failure)
        arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def finish(self, index: int) -> None:
        """Tells the scheduler that a stop string has ended choice `index`."""
        if index in self._open:
            self._open.discard(index)
            self._send(Finish(self.requests[index].request))

    def await_tools(self, index: int, tools: Sequence[str]) -> None:
        """Tells the scheduler that choice `index` has ended by calling these tools."""
        self._send(AwaitTools(self.requests[index].request, list(tools)))

    def close(self) -> None:
        """Abort the choices that still run. Has no effect on a generation that has ended."""
        self.end(ClientGoneError())

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    # For the engine client.

    def answer(
        self, index: int, left_out: Sequence[LeftOutKeyword], allowances: Allowances | None = None
    ) -> None:
        self.left_out = left_out
        self.allowances = allowances
        self._unanswered.discard(index)
        self._wake()

    def refuse(self, index: int, error: RequestError) -> None:
        """Ends the whole request, because the scheduler refused choice `index`."""
        self._open.discard(index)
        self.end(error)

    def end(self, error: RequestError | ClientGoneError) -> None:
        """Abort the choices that still run, and raise the error in the consumer."""
        for index in self._open:
            self._send(Abort(self.requests[index].request))
        self.fail(error)

    def arrive(self, index: int, output: Output, time: float, *, is_late: bool = False) -> None:
        """Adds an output. `is_late`: more messages wait, so the consumer will read several at once."""
        if output.finish is not None:
            self._open.discard(index)
        if self._outputs is not None:
            self._outputs[index] += output.tokens
        if self._take is not None and not (is_late or self._arrivals or self._failure):
            try:
                if self._take(index, output, time):
                    return
            except Exception as error:
                self._failure = error
        if self._failure is None:
            self._arrivals.append(Arrival(index, output, time))
        self._wake()

    @property
    def choices_to_send(self) -> list[Generate]:
        """The open choices. A choice that goes on has its outputs so far."""
        if self._outputs is None:
            return [self.requests[index] for index in sorted(self._open)]
        return [
            replace(self.requests[index], output=bytes(self._outputs[index])) for index in sorted(self._open)
        ]

    def lose_replica(self) -> bool:
        """Notes that its replica has died. Returns whether another one may get the choices to send.

        Forgets all outputs, unless a token has left the server. A second death ends the request, because the
        request may be what kills replicas.
        """
        self.replica, self._send = None, _drop
        self._deaths += 1
        if self._deaths == MAX_ATTEMPTS:
            return False
        if self.token_left:
            return self._outputs is not None
        self.attempt += 1
        self._open = set(range(len(self.requests)))
        self._unanswered = set(self._open)
        self._arrivals.clear()
        for tokens in self._outputs or ():
            tokens.clear()
        return True

    def move(self, replica: int, send: Callable[[Message], None]) -> None:
        """From now on, messages go to this replica, to which the caller sends `choices_to_send`."""
        self.replica, self._send = replica, send

    def fail(self, error: RequestError | ClientGoneError) -> None:
        self._open.clear()
        if self._failure is None:
            self._failure = error
        self._wake()

    @staticmethod
    def _raisable(failure: Exception) -> Exception:
        """The exception to raise for a failure: a copy of it. An unexpected exception is raised itself, with
        its traceback.

        The traceback of a raised exception refers to this object. If this object kept that exception, both
        would wait for the garbage collector.
        """
        return copy(failure) if isinstance(failure, RequestError | ClientGoneError) else failure

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _drop(message: Message) -> None:
    """Stands for the replica of a generation that has none."""
