"""Rules by which a router chooses the replica of a request: Arbora's own, and others as their sources have
them, in Python of our own."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import cycle

from arbora.frontend.fleet.replica import Replica, Shape
from arbora.frontend.fleet.simulation import Clock, MakeRule, Simulation, make_usual_rule
from arbora.frontend.fleet.step_cost import Cost
from arbora.frontend.fleet.workload import Arrival
from arbora.runtime.messages import Generate, Message

RAY_MIN_MATCH = 0.1  # of a prompt; with less, the replica that was sent the least
SGLANG_MIN_MATCH = 0.3
SGLANG_DIFFERENCE = 64  # open requests by which the busiest replica exceeds the idlest, and as a ratio,
SGLANG_RATIO = 1.5  # above which load decides alone


class RuleWithoutReports(ABC):
    """Takes no reports of the trees. It reads the open work of simulated replicas directly, without delay."""

    replicas: Sequence[Replica]

    def __init__(self, replicas: int, page_size: int, clock: Clock) -> None:
        self.numbers = range(replicas)

    @abstractmethod
    def choose(self, arrival: Arrival, message: Generate) -> int:
        """Returns the replica's number."""

    def take(self, replica: int, message: Message) -> None:  # noqa: B027 (no rule needs messages)
        """Learns nothing from a message."""

    def count_open(self, number: int) -> int:
        """Requests of a replica whose replies are not complete."""
        stats = self.replicas[number].scheduler.stats()
        return stats.running + stats.waiting


class RoundRobin(RuleWithoutReports):
    def __init__(self, replicas: int, page_size: int, clock: Clock) -> None:
        super().__init__(replicas, page_size, clock)
        self._turns = cycle(self.numbers)

    def choose(self, arrival: Arrival, message: Generate) -> int:
        return next(self._turns)


class LeastBacklog(RuleWithoutReports):
    """Sends a request to the replica with the fewest seconds of open work. It counts prompts as uncached."""

    def choose(self, arrival: Arrival, message: Generate) -> int:
        message.uncached = arrival.length
        return min(self.numbers, key=lambda each: self.replicas[each].scheduler.measure_load().backlog_s)


class SentPrefixes(RuleWithoutReports):
    """Remembers for ever which blocks each replica was sent after which others."""

    def __init__(self, replicas: int, page_size: int, clock: Clock) -> None:
        super().__init__(replicas, page_size, clock)
        self.random = random.Random(1)
        self.sent: list[set[int]] = [set() for _ in self.numbers]

    def choose(self, arrival: Arrival, message: Generate) -> int:
        number = self.pick(arrival)
        self.sent[number].update(arrival.blocks)
        return number

    @abstractmethod
    def pick(self, arrival: Arrival) -> int:
        """Returns the number of the replica that gets the request."""

    def match(self, number: int, arrival: Arrival) -> int:
        """How many of the prompt's first blocks the replica was sent."""
        sent = self.sent[number]
        return next((at for at, block in enumerate(arrival.blocks) if block not in sent), len(arrival.blocks))

    def find_longest(self, arrival: Arrival) -> tuple[list[int], float]:
        """The replicas with the longest match, and its share of the prompt."""
        matches = [self.match(number, arrival) for number in self.numbers]
        longest = max(matches)
        best = [number for number in self.numbers if matches[number] == longest]
        return best, longest * arrival.block / arrival.length


class RayPrefix(SentPrefixes):
    """Ray Serve's prefix rule at its defaults, which have no bound on load."""

    def pick(self, arrival: Arrival) -> int:
        best, share = self.find_longest(arrival)
        if share < RAY_MIN_MATCH:
            least = min(map(len, self.sent))
            return self.random.choice([each for each in self.numbers if len(self.sent[each]) == least])
        return min(self.random.sample(best, min(2, len(best))), key=self.count_open)


class SglangCacheAware(SentPrefixes):
    """SGLang's cache-aware rule: the least loaded replica if loads differ much, else the longest match."""

    def pick(self, arrival: Arrival) -> int:
        loads = list(map(self.count_open, self.numbers))
        idlest = min(self.numbers, key=lambda each: loads[each])
        if max(loads) - min(loads) > SGLANG_DIFFERENCE and max(loads) > SGLANG_RATIO * min(loads):
            return idlest
        best, share = self.find_longest(arrival)
        return best[0] if share > SGLANG_MIN_MATCH else idlest


RULES: dict[str, MakeRule] = {
    "round robin": RoundRobin,
    "least backlog": LeastBacklog,
    "Ray's prefix rule": RayPrefix,
    "SGLang's cache-aware rule": SglangCacheAware,
    "Arbora's": make_usual_rule,
}


def open_simulation(
    shape: Shape, cost: Cost, arrivals: Sequence[Arrival], replicas: int, make_rule: MakeRule, delay_s: float
) -> Simulation:
    """Makes a simulation whose rule may read the work of the replicas. delay_s: seconds until a report
    reaches the router"""
    simulation = Simulation(shape, cost, arrivals, replicas, make_rule, delay_s)
    if isinstance(simulation.rule, RuleWithoutReports):
        simulation.rule.replicas = simulation.replicas
    return simulation
