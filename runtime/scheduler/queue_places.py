"""Places in the queue: which tenants may still queue a request, and when others should try again."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from math import ceil, exp

UNMEASURED_S = 5  # Retry-After in seconds before any reply has ended
MIN_WAIT_S = 1  # minimal Retry-After in seconds, which must be a whole number
MAX_WAIT_S = 60  # maximal Retry-After in seconds; OpenAI's clients ignore a longer one and retry at once
MEMORY_S = 30.0  # time constant, in seconds, of the average rate of ended replies
SPACING = 0.8
"""Time between promises as a share of the server's time for a request; below 1, as some clients give up."""
MIN_SWEPT_TENANTS = 1024  # a sweep is due at this many tenants plus twice those the last one kept


@dataclass(slots=True, eq=False)
class _Promise:
    """The time at which a refused request was told to try again."""

    request: int
    due: float
    told_at: float


class _Promises:
    """The promises to one tenant's requests that are not due yet, in the order in which they are due."""

    def __init__(self) -> None:
        self.latest = 0.0  # the latest promised time
        self._by_due: deque[_Promise] = deque()
        self._by_request: defaultdict[int, deque[_Promise]] = defaultdict(deque)  # sorted by `told_at`

    def add(self, request: int, due: float, now: float) -> None:
        """Adds a promise, unless it was cut to the longest wait: there may be any number of those."""
        self.latest = due
        if due >= now + MAX_WAIT_S:
            return
        promise = _Promise(request, due, now)
        self._by_due.append(promise)
        self._by_request[request].append(promise)

    def find(self, request: int, now: float) -> float | None:
        """The promised time of a request that comes again too early; None for a new request. The same prompt
        within `MIN_WAIT_S` counts as new, because another client sends it."""
        self._forget_due(now)
        mine = self._by_request.get(request)
        if not mine or mine[0].told_at > now - MIN_WAIT_S:
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


class QueuePlaces:
    """Counts each tenant's requests that compile or wait.

    While fewer than `most` requests wait, every request is admitted. Beyond that a tenant is admitted while
    it has less than its share, so one tenant cannot fill the queue alone.

    With several API keys there are as many tenants as keys, and the share is `most` divided by the keys: a
    key is never refused while fewer of its requests wait. In all at most 2 * `most` wait (`most` + 1 for each
    key, if there are more keys than that).

    Without several keys the number of tenants is not known. Then the share is the number of places, of
    2 * `most`, that are still free: the dynamic threshold of Choudhury and Hahne ("Dynamic queue length
    thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking, 1998). A single
    tenant gets `most` places, two get two thirds of `most` each in the long run, and so on: a
    tenant that floods the queue leaves half of the free places to the next.

    Each refused request of a tenant gets the time at which one more of the tenant's places should be free,
    after the times of its earlier refusals, so clients that obey do not all come back at once, and most come
    back only once. While clients stay away, the waiting requests keep the server busy. A request that comes
    before its time is told the same time again, so clients that don't obey delay no others. The times follow
    from the rate at which replies end while others wait.
    """

    def __init__(self, most: int, keys: int) -> None:
        self.most = most
        self.total = 0
        self._taken: Counter[str] = Counter()  # places in use by each tenant
        self._share_of_key = max(1, most // keys) if keys > 1 else None
        self._now = 0.0
        self._was_busy = False
        self._seconds = 0.0  # seconds in which requests waited; an exponentially weighted sum
        self._ended = 0.0  # replies that ended in those seconds; weighted in the same way
        self._ended_since = 0  # replies that ended since the last tick
        self._promised: dict[str, _Promises] = {}  # promises to each tenant
        self._sweep_at = MIN_SWEPT_TENANTS

    def admits(self, tenant: str) -> bool:
        return self.total < self.most or self._taken[tenant] < self._share

    def taken_by(self, tenant: str) -> int:
        return self._taken[tenant]

    def take(self, tenant: str) -> None:
        self.total += 1
        self._taken[tenant] += 1

    def give_back(self, tenant: str) -> None:
        self.total -= 1
        self._taken[tenant] -= 1
        assert self._taken[tenant] >= 0, f"tenant {tenant!r} gave back a place that it did not hold"
        if not self._taken[tenant]:
            del self._taken[tenant]

    def count_ended(self) -> None:
        """Counts a request that has ended and given back its slot."""
        self._ended_since += 1

    def tick(self, now: float, busy: bool) -> None:
        """`now` is in seconds of any clock. busy: whether requests wait when all steps are planned."""
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
        due = promised.find(request, self._now)
        if due is None:
            due = self._next_due(promised)
            promised.add(request, due, self._now)
        return max(MIN_WAIT_S, ceil(due - self._now))

    @property
    def _share(self) -> int:
        return 2 * self.most - self.total if self._share_of_key is None else self._share_of_key

    def _next_due(self, promised: _Promises) -> float:
        seconds_each = self._seconds / self._ended
        too_many = max(0, self.total - self.most)
        first = self._now + (too_many + 1) * seconds_each
        next_own = promised.latest + SPACING * max(1, len(self._taken)) * seconds_each
        return min(max(first, next_own), self._now + MAX_WAIT_S)

    def _sweep(self) -> None:
        """Forgets tenants without future promises, at an amortized constant cost for each refusal."""
        if len(self._promised) < self._sweep_at:
            return
        self._promised = {
            tenant: promised for tenant, promised in self._promised.items() if promised.latest > self._now
        }
        self._sweep_at = 2 * len(self._promised) + MIN_SWEPT_TENANTS
