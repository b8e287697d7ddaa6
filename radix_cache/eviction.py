"""Which unlocked leaf goes first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Protocol

from .node import Node


class EvictionPolicy(Protocol):
    """Ranks leaves; the lowest rank is evicted first, ties in the order in which they became evictable.

    The tree asks once, when a leaf becomes evictable: when its last lock goes, when its last child is
    evicted, or when eviction has taken its tail. The rank holds until the leaf is locked again.
    `last_use` of an unlocked node is never below that of its descendants, so a rank that grows with
    it takes a branch from its tip upwards.
    """

    def rank(self, leaf: Node) -> float: ...


class LeastRecentlyUsed:
    """Evicts the leaf whose last request ended longest ago."""

    def rank(self, leaf: Node) -> float:
        return leaf.last_use


class EvictionQueue:
    """Evictable leaves by rank: a heap whose stale entries are skipped when they surface."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[float, int, Node]] = []
        self._live = 0
        self._last_ticket = 0

    def __len__(self) -> int:
        return self._live

    def add(self, leaf: Node) -> None:
        assert not leaf.ticket, "the leaf is in the queue already"
        self._last_ticket += 1
        leaf.ticket = self._last_ticket
        heappush(self._heap, (self._policy.rank(leaf), leaf.ticket, leaf))
        self._live += 1

    def discard(self, leaf: Node) -> None:
        if not leaf.ticket:
            return
        leaf.ticket = 0
        self._live -= 1
        if len(self._heap) > 64 + 2 * self._live:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].ticket]
            heapify(self._heap)

    def pop(self) -> Node:
        """Removes and returns the leaf to evict; there must be one."""
        while True:
            _, ticket, leaf = heappop(self._heap)
            if leaf.ticket == ticket:
                leaf.ticket = 0
                self._live -= 1
                return leaf
