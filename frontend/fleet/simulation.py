"""Simulates requests that a router gives to replicas, from their arrivals to their last tokens."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from ...runtime.messages import (
    TOKEN_BYTES,
    Accepted,
    Generate,
    Message,
    Outputs,
    Refused,
    ReplicaReport,
    SchedulerInbox,
)
from ...runtime.sampling_params import SamplingParams
from ..core.replica.router import Router
from .figures import Figures, Served
from .prefill import PageMoves, PrefillServers
from .replica import CLIENT, Replica, Shape
from .step_cost import Cost
from .workload import Arrival

REPORT_DELAY_S = 0.002
"""seconds of a message between a scheduler and the router"""


class Rule(Protocol):
    """Chooses the replica of each request."""

    def choose(self, arrival: Arrival, message: Generate) -> int:
        """Returns the replica's number. May write into the message how much will be computed."""

    def take(self, replica: int, message: Message) -> None:
        """Takes a message from a replica to the client."""


Clock = Callable[[], float]
MakeRule = Callable[[Sequence[Replica], int, Clock], Rule]
"""Makes a rule from the replicas, the number of tokens in a page, and the simulated clock."""


Slowdown = Callable[[int, Collection[int]], float]
"""The factor of the time of a step that a replica begins while the given ones compute, itself included."""


class RouterRule:
    """The router of `arbora serve --replicas`."""

    def __init__(self, replicas: Sequence[Replica], page_size: int, clock: Clock) -> None:
        self._numbers = range(len(replicas))
        self._router = Router(page_size, clock)
        for number in self._numbers:
            self._router.open(number)
            replicas[number].watch()

    def choose(self, arrival: Arrival, message: Generate) -> int:
        number = self._router.choose([message], self._numbers)
        self._router.send([message], number)
        return number

    def take(self, replica: int, message: Message) -> None:
        match message:
            case ReplicaReport():
                is_complete = self._router.take(replica, message)
                assert is_complete, "no report is lost"
            case Accepted(request):
                self._router.note_accepted(request)
            case Refused(request):
                self._router.note_end(request)
            case Outputs(items):
                for output in items:
                    if output.cached_tokens is not None or output.finish:
                        self._router.note_end(output.request)


class FirstReplica:
    """The rule of a server with one replica, which has no router."""

    def choose(self, arrival: Arrival, message: Generate) -> int:
        return 0

    def take(self, replica: int, message: Message) -> None:
        pass


def make_usual_rule(replicas: Sequence[Replica], page_size: int, clock: Clock) -> Rule:
    """The rule of `arbora serve`."""
    return RouterRule(replicas, page_size, clock) if len(replicas) > 1 else FirstReplica()


class Simulation:
    """Runs each request from its arrival to its end. Events are ordered by time, then by their creation."""

    def __init__(
        self,
        shape: Shape,
        cost: Cost,
        arrivals: Sequence[Arrival],
        replicas: int = 1,
        make_rule: MakeRule = make_usual_rule,
        report_delay_s: float = REPORT_DELAY_S,
        slowdown: Slowdown | None = None,
        prefill: PrefillServers | None = None,
    ) -> None:
        """slowdown: for replicas that share processors

        prefill: servers that compute prompts for the replicas, which then only decode; they come after these
        in `replicas`
        """
        self._moves = None if prefill is None else PageMoves(replicas, prefill)
        self.replicas = [
            Replica(shape, cost, "both" if prefill is None else "decode") for _ in range(replicas)
        ]
        self.served = [Served() for _ in arrivals]
        self.gaps_s = array("f")
        """seconds between two tokens of a reply, of all replies"""
        self._arrivals = arrivals
        self._delay_s = report_delay_s
        self._slowdown = slowdown
        self._computing: dict[int, float] = {}  # when the step that a replica runs ends
        self._now = 0.0
        self._serial = count()
        self._events: list[tuple[float, int, int, Sequence[Message] | SchedulerInbox | None]] = []
        self._rule = make_rule(self.replicas, shape.page_size, lambda: self._now)
        if prefill is not None:
            self.replicas += [Replica(shape, cost, "prefill") for _ in range(prefill.replicas)]

    def run(self) -> Figures:
        for number, arrival in enumerate(self._arrivals):
            self._run_until(arrival.at)
            self._now = arrival.at
            self._route(number, arrival)
        self._run_until(float("inf"))
        waits_s = None if self._moves is None else self._moves.waits_s
        return Figures.of(self._arrivals, self.served, self.gaps_s, self.replicas, waits_s)

    def _run_until(self, end: float) -> None:
        events = self._events
        while events and events[0][0] <= end:
            self._now, _, number, messages = heappop(events)
            if messages is None:
                del self._computing[number]
                self._deliver(number, self.replicas[number].end_step(self._now))
            elif isinstance(messages, Message):
                self._deliver(number, self.replicas[number].submit(messages, self._now))
            else:
                for message in messages:
                    self._rule.take(number, message)

    def _route(self, number: int, arrival: Arrival) -> None:
        sampling = SamplingParams(max_tokens=arrival.output, seed=number)
        message = Generate(str(number), CLIENT, arrival.make_prompt(), sampling)
        chosen = self._rule.choose(arrival, message)
        self.served[number].replica = chosen
        self._deliver(chosen, self.replicas[chosen].submit(message, self._now))

    def _deliver(self, number: int, messages: Sequence[Message]) -> None:
        """Gives the messages of a replica to the client, and later to the router. Begins the next step."""
        for message in messages:
            if isinstance(message, Outputs):
                self._note(message)
            elif isinstance(message, Refused):
                self.served[int(message.request)].is_refused = True
        news = [message for message in messages if not isinstance(message, Outputs) or _is_news(message)]
        if news:
            heappush(self._events, (self._now + self._delay_s, next(self._serial), number, news))
        replica = self.replicas[number]
        if replica.has_planned and not replica.is_running:
            self._begin_step(number, replica)
        if self._moves is not None:
            # As in the model process, pages are copied to host memory after the step that runs.
            to_store, saved_at = replica.take_messages_to_store(), self._computing.get(number, self._now)
            for at, receiver, message in self._moves.take(number, to_store, self._now, saved_at):
                heappush(self._events, (at, next(self._serial), receiver, message))

    def _begin_step(self, number: int, replica: Replica) -> None:
        self._computing[number] = self._now
        slowdown = 1.0 if self._slowdown is None else self._slowdown(number, self._computing)
        self._computing[number] = end = self._now + replica.begin_step(slowdown)
        heappush(self._events, (end, next(self._serial), number, None))

    def _note(self, outputs: Outputs) -> None:
        for output in outputs.items:
            served = self.served[int(output.request)]
            tokens = len(output.tokens) // TOKEN_BYTES
            if tokens:
                if served.tokens:
                    self.gaps_s.append(self._now - served.last_at)
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
