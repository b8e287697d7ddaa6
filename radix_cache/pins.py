"""Pinned prefixes: leases without a request, which protect their pages from eviction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .lease import Lease


class Pins:
    """Counts each page once, even if several pins lock it."""

    def __init__(self) -> None:
        self.leases: set[Lease] = set()
        self.holds: Counter[int] = Counter()  # page id -> pins that lock it

    @property
    def num_pages(self) -> int:
        return len(self.holds)

    def add(self, lease: Lease) -> None:
        self.leases.add(lease)
        self.holds.update(lease.pages)

    def remove(self, lease: Lease) -> None:
        self.leases.remove(lease)
        for page in lease.pages:
            self.holds[page] -= 1
            if not self.holds[page]:
                del self.holds[page]

    def count(self, pages: Iterable[int]) -> int:
        """How many of the pages are pinned."""
        return sum(page in self.holds for page in pages)
