"""Pinned prefixes: locks without a request, which protect their pages from eviction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .lock import Lock


class Pins:
    """Counts each page once, even if several pins lock it."""

    def __init__(self) -> None:
        self.locks: set[Lock] = set()
        self.holds: Counter[int] = Counter()  # page id -> pins that lock it

    @property
    def num_pages(self) -> int:
        return len(self.holds)

    def add(self, lock: Lock) -> None:
        self.locks.add(lock)
        self.holds.update(lock.pages)

    def remove(self, lock: Lock) -> None:
        self.locks.remove(lock)
        for page in lock.pages:
            self.holds[page] -= 1
            if not self.holds[page]:
                del self.holds[page]

    def count(self, pages: Iterable[int]) -> int:
        """How many of the pages are pinned."""
        return sum(page in self.holds for page in pages)
