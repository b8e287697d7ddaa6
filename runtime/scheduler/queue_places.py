"""Places in the queue: which tenants may still queue a request, and when the others should try again."""

from __future__ import annotations

from collections import Counter
from math import ceil, exp

UNMEASURED_S = 5  # Retry-After before any reply has ended
LONGEST_WAIT_S = 60  # OpenAI's clients ignore a longer Retry-After and try again at once
MEMORY_S = 30.0  # time constant of the average rate of ended replies
SPACING = 0.8  # of the server's time for a request, between promised times; below 1, as some clients give up
SWEEP_FROM = 1024  # tenants, beyond twice those that the last sweep kept


class QueuePlaces:
    """Counts each tenant's requests that compile or wait.

    While fewer than `most` requests wait, every request is admitted. Beyond that a tenant is admitted while
    it has less than its share, so one tenant's flood does not shut out the others.

    With several API keys there are as many tenants as keys, and the share is `most` divided by the keys: no
    key can be refused while fewer of its requests wait. In all at most 2 * `most` wait (`most` + 1 for each
    key, if there are more keys than that).

    Without several keys the number of tenants is not known. Then the share is the number of places, of
    2 * `most`, that are still free: the dynamic threshold of Choudhury and Hahne ("Dynamic queue length
    thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking, 1998). A single
    tenant gets `most` places, two get two thirds of `most` each in the long run, and so on; each that
    floods the queue leaves half of the free places to the next.
    """

    def __init__(self, most: int, keys: int) -> None:
        self.most = most
        self.total = 0
        self._of: Counter[str] = Counter()
        self._share_of_key = max(1, most // keys) if keys > 1 else None

    @property
    def tenants(self) -> int:
        """How many tenants have a waiting request."""
        return len(self._of)

    def admits(self, tenant: str) -> bool:
        return self.total < self.most or self._of[tenant] < self._share

    def taken_by(self, tenant: str) -> int:
        return self._of[tenant]

    def take(self, tenant: str) -> None:
        self.total += 1
        self._of[tenant] += 1

    def give_back(self, tenant: str) -> None:
        self.total -= 1
        self._of[tenant] -= 1
        assert self._of[tenant] >= 0, f"tenant {tenant!r} gave back a place that it did not hold"
        if not self._of[tenant]:
            del self._of[tenant]

    @property
    def _share(self) -> int:
        return 2 * self.most - self.total if self._share_of_key is None else self._share_of_key


class RetryTimes:
    """Tells refused requests when to try again, from the rate at which replies end while others wait.

    Each refused request of a tenant gets the time at which one more of the tenant's places should be free,
    after the times of its earlier refusals, so clients that obey do not all come back at once, and most come
    back only once. While clients stay away, the waiting requests keep the server busy.
    """

    def __init__(self, places: QueuePlaces) -> None:
        self._places = places
        self._now = 0.0
        self._was_busy = False
        self._seconds = 0.0  # while requests waited; an exponentially weighted sum
        self._ended = 0.0  # replies that ended in that time; weighted in the same way
        self._ended_since = 0  # replies since the last tick
        self._promised: dict[str, float] = {}  # by tenant, the latest time that one of its requests got
        self._sweep_at = SWEEP_FROM

    def ended(self) -> None:
        """A request has ended and given back its slot."""
        self._ended_since += 1

    def tick(self, now: float, busy: bool) -> None:
        """`now` is in seconds of any clock. busy: requests wait although a step is planned."""
        if self._was_busy:
            elapsed = max(0.0, now - self._now)
            past = exp(-elapsed / MEMORY_S)
            self._seconds = self._seconds * past + elapsed
            self._ended = self._ended * past + self._ended_since
        self._ended_since = 0
        self._now, self._was_busy = now, busy

    def retry_after(self, tenant: str) -> int:
        """Seconds until a refused request of the tenant should try again."""
        if not self._ended:
            return UNMEASURED_S
        seconds_each = self._seconds / self._ended
        too_many = max(0, self._places.total - self._places.most)
        first = self._now + (too_many + 1) * seconds_each
        next_own = self._promised.get(tenant, 0.0) + SPACING * max(1, self._places.tenants) * seconds_each
        due = min(max(first, next_own), self._now + LONGEST_WAIT_S)
        self._sweep()
        self._promised[tenant] = due
        return max(1, ceil(due - self._now))

    def _sweep(self) -> None:
        """Forgets past times, at an amortized constant cost for each refusal."""
        if len(self._promised) < self._sweep_at:
            return
        self._promised = {tenant: due for tenant, due in self._promised.items() if due > self._now}
        self._sweep_at = 2 * len(self._promised) + SWEEP_FROM
