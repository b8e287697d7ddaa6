"""Rules by which a router chooses the replica of a request: Arbora's own, and others as their sources have
them, in Python of our own."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from arbora.frontend.core.replica.router import Router
from arbora.runtime.messages import Generate, ReplicaReport
from arbora.runtime.sampling_params import SamplingParams
from simulated_fleet import BLOCK, PAGE, Replica, Request

ONE_TOKEN = SamplingParams(max_tokens=1)
RAY_MIN_MATCH = 0.1  # of a prompt; with less, the replica that was sent the least
SGLANG_MIN_MATCH = 0.3
SGLANG_DIFFERENCE = 64  # open requests by which the busiest replica exceeds the idlest, and as a ratio,
SGLANG_RATIO = 1.5  # above which load decides alone

Clock = Callable[[], float]
Choose = Callable[[Request], int]


class Rule(ABC):
    """Chooses the replica of each request."""

    wants_reports = False

    def __init__(self, replicas: Sequence[Replica], clock: Clock) -> None:
        self.replicas = replicas
        self.numbers = range(len(replicas))

    @abstractmethod
    def choose(self, request: Request) -> tuple[int, int]:
        """Returns the replica, and how many tokens of the prompt are expected to be computed."""

    def note_accepted(self, request: Request) -> None:  # noqa: B027 (only one rule needs it)
        """Notes that the replica's reports count the request."""

    def note_first_token(self, request: Request) -> None:  # noqa: B027 (only one rule needs it)
        """Notes that the request's prompt is computed."""

    def take(self, replica: int, report: ReplicaReport) -> None:  # noqa: B027 (only one rule needs it)
        """Takes a report that the replica has sent."""


class RuleWithoutReports(Rule):
    """Knows no trees, so it expects whole prompts to be computed."""

    def choose(self, request: Request) -> tuple[int, int]:
        return self.pick(request), request.length

    @abstractmethod
    def pick(self, request: Request) -> int:
        """Returns the replica that gets the request."""


class RoundRobin(RuleWithoutReports):
    def pick(self, request: Request) -> int:
        return request.number % len(self.replicas)


class LeastBacklog(RuleWithoutReports):
    """Knows the backlogs exactly and at once, but no prefixes."""

    def pick(self, request: Request) -> int:
        return min(self.numbers, key=lambda each: self.replicas[each].backlog_s)


class SentPrefixes(RuleWithoutReports):
    """Remembers for ever which blocks each replica was sent after which others."""

    def __init__(self, replicas: Sequence[Replica], clock: Clock) -> None:
        super().__init__(replicas, clock)
        self.random = random.Random(1)
        self.sent: list[set[int]] = [set() for _ in replicas]

    def choose(self, request: Request) -> tuple[int, int]:
        number = self.pick(request)
        cached = self.match(number, request)
        self.sent[number].update(request.blocks)
        return number, max(1, request.length - cached * BLOCK)

    def match(self, number: int, request: Request) -> int:
        """How many of the prompt's first blocks the replica was sent."""
        sent = self.sent[number]
        return next((at for at, block in enumerate(request.blocks) if block not in sent), len(request.blocks))

    def find_longest(self, request: Request) -> tuple[list[int], float]:
        """The replicas with the longest match, and its share of the prompt."""
        matches = [self.match(number, request) for number in self.numbers]
        longest = max(matches)
        best = [number for number in self.numbers if matches[number] == longest]
        return best, longest * BLOCK / request.length


class RayPrefix(SentPrefixes):
    """Ray Serve's prefix rule at its defaults, which have no bound on load."""

    def pick(self, request: Request) -> int:
        best, share = self.find_longest(request)
        if share < RAY_MIN_MATCH:
            least = min(map(len, self.sent))
            return self.random.choice([each for each in self.numbers if len(self.sent[each]) == least])
        two = self.random.sample(best, min(2, len(best)))
        return min(two, key=lambda each: self.replicas[each].open)


class SglangCacheAware(SentPrefixes):
    """SGLang's cache-aware rule: the least loaded replica if loads differ much, else the longest match."""

    def pick(self, request: Request) -> int:
        loads = [replica.open for replica in self.replicas]
        idlest = min(self.numbers, key=lambda each: loads[each])
        if max(loads) - min(loads) > SGLANG_DIFFERENCE and max(loads) > SGLANG_RATIO * min(loads):
            return idlest
        best, share = self.find_longest(request)
        return best[0] if share > SGLANG_MIN_MATCH else idlest


class Arbora(Rule):
    """The real router. A page of two tokens stands for a block, so a token counts as half a block's time."""

    wants_reports = True

    def __init__(self, replicas: Sequence[Replica], clock: Clock) -> None:
        super().__init__(replicas, clock)
        self._router = Router(PAGE, clock)
        for number in self.numbers:
            self._router.open(number)

    def choose(self, request: Request) -> tuple[int, int]:
        message = Generate(str(request.number), 0, request.prompt, ONE_TOKEN)
        number = self._router.choose([message], self.numbers)
        self._router.send([message], number)
        return number, message.uncached * BLOCK // PAGE

    def note_accepted(self, request: Request) -> None:
        self._router.note_accepted(str(request.number))

    def note_first_token(self, request: Request) -> None:
        self._router.note_end(str(request.number))

    def take(self, replica: int, report: ReplicaReport) -> None:
        assert self._router.take(replica, report), "no report is lost"


RULES: dict[str, Callable[[Sequence[Replica], Clock], Rule]] = {
    "round robin": RoundRobin,
    "least backlog": LeastBacklog,
    "Ray's prefix rule": RayPrefix,
    "SGLang's cache-aware rule": SglangCacheAware,
    "Arbora's": Arbora,
}
