"""Measures the open work of the scheduler in seconds, for routers that choose between replicas."""

from __future__ import annotations

from collections.abc import Collection

from ..messages import Load
from .budget import StepBudget
from .lifecycle import Lifecycle
from .plan import StepInFlight

FIRST_REPLY = 128
"""assumed length of a reply in tokens, which counts as one reply in the mean of all"""


class Backlog:
    """Counts prompt tokens that are waiting or in prefill at their measured time, and what is left of open
    replies at the time of a step with all slots in use: as the time that they take of the whole machine."""

    def __init__(
        self, requests: Lifecycle, budget: StepBudget, slots: int, in_flight: Collection[StepInFlight]
    ) -> None:
        self._requests = requests
        self._budget = budget
        self._slots = slots
        self._in_flight = in_flight
        self._replies = 1

    def count_reply(self) -> None:
        """Counts a request that starts for the first time."""
        self._replies += 1

    def measure(self, output_tokens: int) -> Load:
        """The present load. output_tokens: number of tokens of all replies since the start"""
        mean = (FIRST_REPLY + output_tokens) // self._replies
        waiting = self._requests.waiting
        to_compute = waiting.to_compute + sum(flight.prefill_tokens for flight in self._in_flight)
        to_decode = min(waiting.most_output, mean * len(waiting))
        to_restore = decoding = 0
        for request in self._requests.residents.values():
            if not request.stays:
                continue
            allocation = request.allocation
            if allocation.prefilling:
                to_compute += max(0, allocation.prefill_end - allocation.ready)
                to_restore += allocation.to_restore
            else:
                decoding += 1
            to_decode += max(1, min(mean, request.sampling.max_tokens) - request.output_length)
        token_s = self._budget.estimate_token_s(decoding, self._requests.streams_text)
        restore_s = to_restore * self._budget.restored_token_s
        reply_s = to_decode * self._budget.base_s / self._slots
        backlog_s = to_compute * token_s + restore_s + reply_s
        step_s = self._budget.base_s if decoding else 0.0
        return Load(backlog_s, token_s if self._budget.has_measured else None, step_s)
