"""Places in the queue: which tenants may still queue a request."""

from __future__ import annotations

from collections import Counter


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
