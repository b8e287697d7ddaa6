"""Processor time that a server and its clients take: for each second, token and refusal."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from process_figures import cpu_seconds

CLIENTS = "clients"
SERVER = "server"  # all its processes
TOUCHED_BY_REFUSALS = ("tokenizer", "scheduler", CLIENTS)


class Reading(NamedTuple):
    at: float
    core_s: dict[str, float]
    """used so far: by each of the server's processes, by all of them, and by the clients in this process"""


def read_processors(pid: int | None) -> Reading:
    """`pid` is that of `arbora serve`; without one, only the clients' time is known."""
    used = cpu_seconds(pid)
    server = {SERVER: sum(used.values())} if used else {}
    return Reading(time.perf_counter(), {**used, **server, CLIENTS: time.process_time()})


def cores(first: Reading, last: Reading) -> dict[str, float]:
    """The number of cores that each role used on average between two readings."""
    seconds = max(1e-9, last.at - first.at)
    return {role: round(used / seconds, 3) for role, used in _between(first, last).items()}


@dataclass(frozen=True)
class Cost:
    """The core-seconds that a measurement took, and the tokens and refusals that the server sent in it."""

    core_s: dict[str, float]
    tokens: int
    """of whole replies"""
    refusals: int = 0

    @classmethod
    def of(cls, first: Reading, last: Reading, tokens: int, refusals: int = 0) -> Cost:
        return cls(_between(first, last), tokens, refusals)

    def __add__(self, other: Cost) -> Cost:
        used = {role: self.core_s.get(role, 0.0) + core_s for role, core_s in other.core_s.items()}
        return Cost(used, self.tokens + other.tokens, self.refusals + other.refusals)

    def ms_per_token(self) -> dict[str, float]:
        return {role: _ms(used / max(1, self.tokens)) for role, used in self.core_s.items()}

    def tokens_per_server_core_s(self) -> float | None:
        used = self.core_s.get(SERVER, 0.0)
        return round(self.tokens / used, 1) if used else None

    def ms_per_refusal(self, full: Cost) -> dict[str, float]:
        """The time for each refusal: what remains if each token takes as much as in a `full` server,
        which refuses nothing."""
        if not self.refusals or not full.tokens:
            return {}
        streams = self.tokens / full.tokens
        return {
            role: _ms((self.core_s[role] - streams * full.core_s[role]) / self.refusals)
            for role in TOUCHED_BY_REFUSALS
            if role in self.core_s and role in full.core_s
        }


def _between(first: Reading, last: Reading) -> dict[str, float]:
    return {role: used - first.core_s.get(role, 0.0) for role, used in last.core_s.items()}


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
