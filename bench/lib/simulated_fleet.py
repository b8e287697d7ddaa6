"""Simulated replicas with real prefix caches, and the events of a fleet of them behind a router."""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from arbora.radix_cache import PrefixCache
from arbora.runtime.messages import TOKEN_BYTES, Load, ReplicaReport
from arbora.runtime.scheduler.backlog import FIRST_REPLY
from arbora.runtime.scheduler.replies import Replies
from arbora.runtime.scheduler.routing_reports import RoutingReports

if TYPE_CHECKING:
    from fleet_rules import Rule

BLOCK = 512  # tokens in a block of the trace
PAGE = 2  # tokens of the simulated cache that stand for a block
STEP_S = 0.008  # between two tokens of a reply
TURN_S = 0.05  # between two turns of a scheduler that has work, each with a report


@dataclass(frozen=True)
class Machine:
    """The cache of a replica in tokens, the times of its work, and how late its reports are, in seconds."""

    tokens: int
    token_s: float
    reply_token_s: float
    delay_s: float


@dataclass(frozen=True, eq=False)
class Request:
    """A request of a trace. Equal `blocks` mean equal content after an equal prefix."""

    number: int
    at: float
    blocks: Sequence[int]
    prompt: bytes  # the blocks as tokens of the simulated cache
    length: int
    output: int


def read_requests(path: Path, speed: float, limit: int | None) -> list[Request]:
    """Requests in Mooncake's format, which come `speed` times as fast as in the trace."""
    requests = []
    with path.open() as lines:
        for number, line in enumerate(lines):
            fields = json.loads(line)
            blocks, at = fields["hash_ids"], fields["timestamp"] / 1e3 / speed
            prompt = array("i", [block for block in blocks for _ in range(PAGE)]).tobytes()
            output = max(1, fields["output_length"])
            requests.append(Request(number, at, blocks, prompt, fields["input_length"], output))
    return requests[:limit]


class Replica:
    """Computes prompts in the order in which they come. A prompt's pages enter the cache when it begins. Its
    reply takes the replica's time once the prompt is computed."""

    def __init__(self, machine: Machine) -> None:
        self.cache = PrefixCache(machine.tokens // BLOCK, PAGE)
        self.open = 0  # requests whose replies are not complete
        self.work_s = 0.0
        self.now = 0.0
        self.is_beginning = False  # whether the begin of the first waiting prompt is an event to come
        self._machine = machine
        self._replies = Replies()
        self._reports = RoutingReports(self.cache, self._measure, self._replies)
        self._waiting: deque[tuple[Request, int]] = deque()
        self._to_compute = 0  # tokens of waiting prompts, as the router expects
        self.begun, self._output = 1, FIRST_REPLY  # requests that have begun, and tokens of their replies
        self._busy_until = 0.0

    @property
    def next_begin(self) -> float | None:
        """When the next prompt begins; None if none waits."""
        return max(self.now, self._busy_until) if self._waiting else None

    @property
    def backlog_s(self) -> float:
        replies_s = len(self._waiting) * self._output / self.begun * self._machine.reply_token_s
        return max(0.0, self._busy_until - self.now) + self._to_compute * self._machine.token_s + replies_s

    @property
    def is_busy(self) -> bool:
        return self._busy_until > self.now

    def watch(self) -> None:
        self._reports.watch(0)

    def take_reports(self) -> list[ReplicaReport]:
        self._reports.send()
        messages = self._replies.take().get(0, [])
        return [message for message in messages if isinstance(message, ReplicaReport)]

    def submit(self, request: Request, to_compute: int) -> None:
        self._waiting.append((request, to_compute))
        self._to_compute += to_compute
        self.open += 1

    def begin_next(self) -> tuple[Request, int, float]:
        """Begins the next prompt. Returns it, its cached tokens, and when its first token comes."""
        request, to_compute = self._waiting.popleft()
        self._to_compute -= to_compute
        self.begun, self._output = self.begun + 1, self._output + request.output
        cached = min(request.length - 1, self._cache(request) // PAGE * BLOCK)
        first = self.now + (request.length - cached) * self._machine.token_s
        self._busy_until = first + request.output * self._machine.reply_token_s
        self.work_s += self._busy_until - self.now
        return request, cached, first

    def _cache(self, request: Request) -> int:
        """Enters a prompt into the cache. Returns how many of its tokens were there."""
        length = len(request.prompt) // TOKEN_BYTES
        lock = self.cache.acquire(self.cache.match("", request.prompt, length), length)
        matched = lock.matched
        pages = min(len(request.blocks), len(lock.pages) + self.cache.available())
        assert self.cache.extend(lock, PAGE * pages)
        computed = request.prompt[: PAGE * pages * TOKEN_BYTES]
        self.cache.commit(lock, computed)
        if lock.copy is not None:
            self.cache.end_copy(lock)
        self.cache.release(lock, computed, request.output)
        return matched

    def _measure(self) -> Load:
        return Load(self.backlog_s, self._machine.token_s * BLOCK / PAGE)


class Simulation:
    """`first_token_s` has each request's time to first token."""

    def __init__(
        self,
        machine: Machine,
        requests: Sequence[Request],
        replicas: int,
        rule: Callable[[Sequence[Replica], Callable[[], float]], Rule],
    ) -> None:
        self.replicas = [Replica(machine) for _ in range(replicas)]
        self.first_token_s: list[float] = []
        self._cached = 0
        self._machine = machine
        self._requests = requests
        self._now = 0.0
        self._rule = rule(self.replicas, lambda: self._now)
        self._serial = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    @property
    def hit_rate(self) -> float:
        return self._cached / sum(request.length for request in self._requests)

    def run(self) -> None:
        if self._rule.wants_reports:
            for number, replica in enumerate(self.replicas):
                replica.watch()
                self._report(number)
        for request in self._requests:
            self._plan(request.at, lambda request=request: self._route(request))  # type: ignore[misc]
        while self._events:
            self._now, _, act = heappop(self._events)
            act()

    def _plan(self, at: float, act: Callable[[], None]) -> None:
        heappush(self._events, (at, next(self._serial), act))

    def _route(self, request: Request) -> None:
        for replica in self.replicas:
            replica.now = self._now
        number, to_compute = self._rule.choose(request)
        self.replicas[number].submit(request, to_compute)
        self._plan(self._now + self._machine.delay_s, lambda: self._rule.note_accepted(request))
        self._go_on(number)

    def _go_on(self, number: int) -> None:
        """Plans the begin of the replica's next prompt, and reports."""
        replica = self.replicas[number]
        replica.now = self._now
        if not replica.is_beginning and replica.next_begin is not None:
            replica.is_beginning = True
            self._plan(replica.next_begin, lambda: self._begin(number))
        self._report(number)

    def _begin(self, number: int) -> None:
        replica = self.replicas[number]
        replica.now, replica.is_beginning = self._now, False
        request, cached, first = replica.begin_next()
        self._cached += cached
        self.first_token_s.append(first - request.at)
        self._plan(first, lambda: self._end_prompt(number, request))
        self._plan(first + request.output * STEP_S, lambda: self._end_reply(number))
        self._turn(number, replica.begun)
        self._go_on(number)

    def _turn(self, number: int, begun: int) -> None:
        """Reports, and plans the next turn while the replica works on the same prompt and reply."""
        replica = self.replicas[number]
        replica.now = self._now
        if replica.begun == begun:
            self._report(number)
            if replica.is_busy:
                self._plan(self._now + TURN_S, lambda: self._turn(number, begun))

    def _end_prompt(self, number: int, request: Request) -> None:
        self._rule.note_first_token(request)
        self._go_on(number)

    def _end_reply(self, number: int) -> None:
        self.replicas[number].open -= 1

    def _report(self, number: int) -> None:
        if self._rule.wants_reports:
            for report in self.replicas[number].take_reports():
                at = self._now + self._machine.delay_s
                self._plan(at, lambda report=report: self._rule.take(number, report))  # type: ignore[misc]
