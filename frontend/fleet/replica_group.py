"""Replicas in simulated time, as far as one process computes them: their steps, and when their messages reach
clients and the router."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from ...runtime.messages import TOKEN_BYTES, Generate, Message, Outputs, Refused, SchedulerInbox
from .figures import Served, Usage
from .prefill import PageMoves
from .replica import Replica

Slowdown = Callable[[int, Collection[int]], float]
"""The factor of the time of a step that a replica begins while the given ones compute, itself included."""


class Sent(NamedTuple):
    """A request, the replica to which the router sends it, and when."""

    at: float
    replica: int
    message: Generate


class News(NamedTuple):
    """Messages that a replica sends to the router, and when."""

    at: float
    replica: int
    messages: Sequence[Message]


@dataclass(slots=True)
class Progress:
    """How far the requests of a group have come, and how its replicas were used."""

    served: dict[int, Served] = field(default_factory=dict)
    """by the number of the request"""
    gaps_s: array[float] = field(default_factory=lambda: array("f"))
    """seconds between two tokens of a reply, of all replies"""
    usage: dict[int, Usage] = field(default_factory=dict)
    """by the number of the replica"""


class ReplicaGroup:
    """Runs the events of its replicas in the order of their times; where these are equal, in the order in
    which the events were created. Replicas of different groups affect each other only through the router."""

    def __init__(
        self,
        replicas: dict[int, Replica],
        slowdown: Slowdown | None = None,
        moves: PageMoves | None = None,
    ) -> None:
        """replicas: by their numbers. slowdown: for replicas that share processors"""
        self._replicas = replicas
        self._slowdown = slowdown
        self._moves = moves
        self._computing: dict[int, float] = {}  # when the step that a replica runs ends
        self._now = 0.0
        self._serial = count()
        self._events: list[tuple[float, int, int, SchedulerInbox | None]] = []
        self._news: list[News] = []
        self._progress = Progress()

    def advance(self, sent: Sequence[Sent], end: float) -> list[News]:
        """Computes all events until `end`, with the requests that are sent meanwhile, in the order of their
        times. Returns the messages to the router."""
        for at, replica, message in sent:
            self._run_until(at)
            self._now = at
            self._progress.served[int(message.request)] = Served(replica)
            self._deliver(replica, self._replicas[replica].submit(message, at))
        self._run_until(end)
        news, self._news = self._news, []
        return news

    def find_progress(self) -> Progress:
        self._progress.usage = {number: replica.usage for number, replica in self._replicas.items()}
        return self._progress

    def _run_until(self, end: float) -> None:
        events = self._events
        while events and events[0][0] <= end:
            self._now, _, number, message = heappop(events)
            replica = self._replicas[number]
            if message is None:
                del self._computing[number]
                self._deliver(number, replica.end_step(self._now))
            else:
                self._deliver(number, replica.submit(message, self._now))

    def _deliver(self, number: int, messages: Sequence[Message]) -> None:
        """Gives the messages of a replica to the client and to the router. Begins the next step."""
        for message in messages:
            if isinstance(message, Outputs):
                self._note(message)
            elif isinstance(message, Refused):
                self._progress.served[int(message.request)].is_refused = True
        news = [message for message in messages if not isinstance(message, Outputs) or _is_news(message)]
        if news:
            self._news.append(News(self._now, number, news))
        replica = self._replicas[number]
        if replica.has_planned and not replica.is_running:
            self._begin_step(number, replica)
        if self._moves is not None:
            # As in the model process, pages are copied to host memory after the step that runs.
            to_store, saved_at = replica.take_messages_to_store(), self._computing.get(number, self._now)
            for at, receiver, answer in self._moves.take(number, to_store, self._now, saved_at):
                heappush(self._events, (at, next(self._serial), receiver, answer))

    def _begin_step(self, number: int, replica: Replica) -> None:
        self._computing[number] = self._now
        slowdown = 1.0 if self._slowdown is None else self._slowdown(number, self._computing)
        self._computing[number] = end = self._now + replica.begin_step(slowdown)
        heappush(self._events, (end, next(self._serial), number, None))

    def _note(self, outputs: Outputs) -> None:
        for output in outputs.items:
            served = self._progress.served[int(output.request)]
            tokens = len(output.tokens) // TOKEN_BYTES
            if tokens:
                if served.tokens:
                    self._progress.gaps_s.append(self._now - served.last_at)
                else:
                    served.first_at = self._now
                served.tokens += tokens
                served.last_at = self._now
            if output.cached_tokens is not None:
                served.cached = output.cached_tokens
            if output.finish is not None:
                served.ends += 1


def _is_news(message: Outputs) -> bool:
    """Whether some request's prompt is computed, or its reply complete."""
    return any(output.cached_tokens is not None or output.finish for output in message.items)
