"""Simulates requests that a router gives to replicas, from their arrivals to their last tokens."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from ...runtime.messages import Accepted, Generate, Message, Outputs, Refused, ReplicaReport
from ...runtime.sampling_params import SamplingParams
from ..core.replica.router import Router
from .figures import Figures, Served, Usage
from .group_process import GroupProcess
from .prefill import PageMoves, PrefillServers
from .replica import CLIENT, Replica, Role, Shape
from .replica_group import News, Progress, ReplicaGroup, Sent, Slowdown
from .step_cost import Cost
from .workload import Arrival

REPORT_DELAY_S = 0.002
"""seconds of a message between a scheduler and the router"""
ROUTER_SHARE = 0.12
"""share of the computation that is the router's, as measured with 1,000 replicas"""


class Rule(Protocol):
    """Chooses the replica of each request."""

    def choose(self, arrival: Arrival, message: Generate) -> int:
        """Returns the replica's number. May write into the message how much will be computed."""

    def take(self, replica: int, message: Message) -> None:
        """Takes a message from a replica to the client."""


Clock = Callable[[], float]
MakeRule = Callable[[int, int, Clock], Rule]
"""Makes a rule from the numbers of replicas and of tokens in a page, and the simulated clock."""


class RouterRule:
    """The router of `arbora serve --replicas`."""

    def __init__(self, replicas: int, page_size: int, clock: Clock) -> None:
        self._numbers = range(replicas)
        self._router = Router(page_size, clock)
        for number in self._numbers:
            self._router.open(number)

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


def make_usual_rule(replicas: int, page_size: int, clock: Clock) -> Rule:
    """The rule of `arbora serve`."""
    return RouterRule(replicas, page_size, clock) if replicas > 1 else FirstReplica()


class Simulation:
    """Runs each request from its arrival to its end.

    Several processes may compute the replicas, each a part of them. The router learns of an event only after
    the delay of messages, so within this time it may choose for all arrivals before the replicas go on. The
    result does not depend on the number of processes.
    """

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
        processes: int = 1,
    ) -> None:
        """slowdown: for replicas that share processors

        prefill: servers that compute prompts for the replicas, which then only decode; they come after these
        in `replicas`

        processes: this one included; more than one only without `slowdown` and `prefill`
        """
        assert processes == 1 or (slowdown is None and prefill is None), "these are of one process"
        moves = None if prefill is None else PageMoves(replicas, prefill)
        role: Role = "both" if prefill is None else "decode"
        numbers, *others = divide(replicas, processes)
        self.replicas = [Replica(shape, cost, role, is_watched=replicas > 1) for _ in numbers]
        """those that this process computes"""
        if prefill is not None:
            numbers += range(replicas, replicas + prefill.replicas)
            self.replicas += [Replica(shape, cost, "prefill") for _ in range(prefill.replicas)]
        self.served = [Served() for _ in arrivals]
        self.gaps_s = array("f")
        """seconds between two tokens of a reply, of all replies"""
        self.usage: list[Usage] = []
        self._group = ReplicaGroup(dict(zip(numbers, self.replicas, strict=True)), slowdown, moves)
        self._others = [GroupProcess(shape, cost, each) for each in others]
        self._parts = {number: part for part, each in enumerate([numbers, *others]) for number in each}
        self._moves = moves
        self._arrivals = arrivals
        self._delay_s = report_delay_s
        self._now = 0.0
        self._serial = count()
        self._news: list[tuple[float, int, int, Sequence[Message]]] = []  # heap of what reaches the router
        self.rule = make_rule(replicas, shape.page_size, lambda: self._now)

    def run(self) -> Figures:
        sent: list[Sent] = []
        may_go_on_until = 0.0
        for number, arrival in enumerate(self._arrivals):
            if arrival.at >= may_go_on_until:
                self._advance(sent, arrival.at)
                sent = []
                may_go_on_until = arrival.at + (self._delay_s if self._others else 0.0)
            sent.append(self._route(number, arrival))
        self._advance(sent, float("inf"))
        self._take([self._group.find_progress(), *(other.finish() for other in self._others)])
        waits_s = None if self._moves is None else self._moves.waits_s
        return Figures.of(self._arrivals, self.served, self.gaps_s, self.usage, waits_s)

    def _route(self, number: int, arrival: Arrival) -> Sent:
        while self._news and self._news[0][0] <= arrival.at:
            self._now, replica, _, messages = heappop(self._news)
            for message in messages:
                self.rule.take(replica, message)
        self._now = arrival.at
        sampling = SamplingParams(max_tokens=arrival.output, seed=number)
        request = Generate(str(number), CLIENT, arrival.make_prompt(), sampling)
        return Sent(arrival.at, self.rule.choose(arrival, request), request)

    def _advance(self, sent: Iterable[Sent], end: float) -> None:
        """Has all processes compute the events until `end`, and takes the messages to the router."""
        parts: list[list[Sent]] = [[] for _ in range(1 + len(self._others))]
        for each in sent:
            parts[self._parts[each.replica]].append(each)
        for other, part in zip(self._others, parts[1:], strict=True):
            other.begin(part, end)
        self._note(self._group.advance(parts[0], end))
        for other in self._others:
            self._note(other.collect())

    def _note(self, news: Iterable[News]) -> None:
        # Messages that arrive at the same time are ordered by replica: then the processes do not matter.
        for at, replica, messages in news:
            heappush(self._news, (at + self._delay_s, replica, next(self._serial), messages))

    def _take(self, found: Iterable[Progress]) -> None:
        usage = dict[int, Usage]()
        for progress in found:
            for number, served in progress.served.items():
                self.served[number] = served
            self.gaps_s += progress.gaps_s
            usage |= progress.usage
        self.usage = [usage[number] for number in sorted(usage)]


def divide(replicas: int, processes: int) -> list[list[int]]:
    """Returns the numbers of the replicas that each process computes. The first process has fewer, because it
    routes too."""
    share = 1 / processes - ROUTER_SHARE / (1 - ROUTER_SHARE) * (1 - 1 / processes)
    own = round(replicas * max(0.0, share))
    return [
        [*range(own)],
        *([*range(own + first, replicas, processes - 1)] for first in range(processes - 1)),
    ]
