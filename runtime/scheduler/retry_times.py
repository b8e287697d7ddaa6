"""Tells refused requests when to try again."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from math import ceil, exp

from .queue_places import QueuePlaces

UNMEASURED_S = 5  # Retry-After before any reply has ended
LEAST_WAIT_S = 1  # Retry-After is a whole number
LONGEST_WAIT_S = 60  # OpenAI's clients ignore a longer Retry-After and try again at once
MEMORY_S = 30.0  # time constant of the average rate of ended replies
SPACING = 0.8  # between promised times, of the server's time for a request; below 1, as some clients give up
SWEEP_FROM = 1024  # tenants, beyond twice those that the last sweep kept


@dataclass(slots=True, eq=False)
class _Promise:
    """The time at which a refused request was told to try again."""

    request: int
    due: float
    told_at: float


class _Promises:
    """The promises to one tenant's requests that are not due yet."""

    def __init__(self) -> None:
        self.latest = 0.0  # the time promised last
        self._by_due: deque[_Promise] = deque()
        self._by_request: defaultdict[int, deque[_Promise]] = defaultdict(deque)  # in the order of `told_at`

    def add(self, request: int, due: float, now: float) -> None:
        """Promises that were cut to the longest wait are not kept; there may be any number of them."""
        self.latest = due
        if due >= now + LONGEST_WAIT_S:
            return
        promise = _Promise(request, due, now)
        self._by_due.append(promise)
        self._by_request[request].append(promise)

    def of(self, request: int, now: float) -> float | None:
        """The time that the request was told before, if it comes again too early; None for a new request. The
        same prompt within `LEAST_WAIT_S` counts as new, because another client sends it."""
        self._forget_due(now)
        mine = self._by_request.get(request)
        if not mine or mine[0].told_at > now - LEAST_WAIT_S:
            return None
        mine.rotate(-1)
        mine[-1].told_at = now
        return mine[-1].due

    def _forget_due(self, now: float) -> None:
        while self._by_due and self._by_due[0].due <= now:
            promise = self._by_due.popleft()
            self._by_request[promise.request].remove(promise)
            if not self._by_request[promise.request]:
                del self._by_request[promise.request]


class RetryTimes:
    """Computes when refused requests should try again, from the rate at which replies end while others wait.

    Each refused request of a tenant gets the time at which one more of the tenant's places should be free,
    after the times of its earlier refusals, so clients that obey do not all come back at once, and most come
    back only once. While clients stay away, the waiting requests keep the server busy. A request that comes
    before its time is told the same time again, so clients that don't obey delay no others.
    """

    def __init__(self, places: QueuePlaces) -> None:
        self._places = places
        self._now = 0.0
        self._was_busy = False
        self._seconds = 0.0  # while requests waited; an exponentially weighted sum
        self._ended = 0.0  # replies that ended in that time; weighted in the same way
        self._ended_since = 0  # replies since the last tick
        self._promised: dict[str, _Promises] = {}  # by tenant
        self._sweep_at = SWEEP_FROM

    def ended(self) -> None:
        """A request has ended and given back its slot."""
        self._ended_since += 1

    def tick(self, now: float, busy: bool) -> None:
        """`now` is in seconds of any clock. busy: requests wait although all possible steps are planned."""
        if self._was_busy:
            elapsed = max(0.0, now - self._now)
            past = exp(-elapsed / MEMORY_S)
            self._seconds = self._seconds * past + elapsed
            self._ended = self._ended * past + self._ended_since
        self._ended_since = 0
        self._now, self._was_busy = now, busy

    def retry_after(self, tenant: str, request: int) -> int:
        """Seconds until a refused request of the tenant should try again. `request` is the hash of its
        prompt, which identifies it when it comes again."""
        if not self._ended:
            return UNMEASURED_S
        self._sweep()
        promised = self._promised.setdefault(tenant, _Promises())
        due = promised.of(request, self._now)
        if due is None:
            due = self._next_due(promised)
            promised.add(request, due, self._now)
        return max(LEAST_WAIT_S, ceil(due - self._now))

    def _next_due(self, promised: _Promises) -> float:
        seconds_each = self._seconds / self._ended
        too_many = max(0, self._places.total - self._places.most)
        first = self._now + (too_many + 1) * seconds_each
        next_own = promised.latest + SPACING * max(1, self._places.tenants) * seconds_each
        return min(max(first, next_own), self._now + LONGEST_WAIT_S)

    def _sweep(self) -> None:
        """Forgets tenants without future promises, at an amortized constant cost for each refusal."""
        if len(self._promised) < self._sweep_at:
            return
        self._promised = {
            tenant: promised for tenant, promised in self._promised.items() if promised.latest > self._now
        }
        self._sweep_at = 2 * len(self._promised) + SWEEP_FROM
