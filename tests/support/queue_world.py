"""A waiting queue with made-up matches, whose requests start one by one in its order."""

from __future__ import annotations

from array import array

from arbora.runtime.messages import Generate
from arbora.runtime.sampling_params import SamplingParams
from arbora.runtime.scheduler.fairness import Bounds, Fairness
from arbora.runtime.scheduler.request import Request
from arbora.runtime.scheduler.waiting_queue import WaitingQueue

BOUNDS = Bounds(overtaken=4, ahead=100)


class QueueWorld:
    """`start` charges a request the tokens that it doesn't match."""

    def __init__(self, bounds: Bounds = BOUNDS, own_priorities: bool = False) -> None:
        self.fairness = Fairness(bounds.ahead, own_priorities)
        self.queue = WaitingQueue(self.fairness, bounds)
        self.started: list[Request] = []
        self.matches: dict[str, int] = {}
        self._arrivals = 0

    def add(self, tenant: str = "", priority: int = 0, tokens: int = 10, matched: int = 0) -> Request:
        self._arrivals += 1
        prompt = array("i", range(tokens)).tobytes()
        sampling = SamplingParams(max_tokens=1)
        message = Generate(str(self._arrivals), 0, prompt, sampling, priority=priority, tenant=tenant)
        request = Request.from_message(message, self._arrivals)
        self.matches[request.id] = matched
        self.fairness.contend(request, {})
        self.queue.add(request)
        return request

    def start(self) -> Request:
        """Starts the first request in order, and computes its prompt at once."""
        request = self.queue.find_candidates(lambda r: self.matches[r.id], lambda rank: True, set())[0]
        self.queue.remove_started(request)
        self.fairness.charge(request, request.prompt_length - self.matches[request.id])
        self.fairness.rest(request)
        self.started.append(request)
        return request

    def lead(self, tenants: list[str], priority: int = 0) -> float:
        """Tokens that the most served tenant is ahead of the least served one."""
        counters = [self.fairness.counter(priority, tenant) for tenant in tenants]
        return max(counters) - min(counters)
