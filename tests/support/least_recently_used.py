"""The reference for eviction policies: least recently used."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from arbora.radix_cache.node import Node


class LeastRecentlyUsed:
    """Evicts the leaf whose last request ended longest ago, from a heap whose stale entries are skipped.

    A node's last use is never before that of its descendants, so a branch is evicted from its leaves upwards.
    """

    history = 0

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Node]] = []
        self._tickets: dict[Node, int] = {}  # ticket of each leaf's valid entry
        self._last_ticket = 0

    def advance(self, now: int) -> None:
        pass

    def hit(self, node: Node) -> None:
        pass

    def rest(self, node: Node, generated: int) -> None:
        pass

    def shorten(self, node: Node, size: int) -> None:
        pass

    def forget(self, node: Node) -> None:
        pass

    def observe_tail(self, share: float) -> None:
        pass

    def pop_tail(self) -> Node | None:
        return None

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, leaf: Node) -> None:
        assert leaf not in self._tickets, "the leaf is in the queue already"
        self._last_ticket += 1
        self._tickets[leaf] = self._last_ticket
        heappush(self._heap, (leaf.last_use, self._last_ticket, leaf))

    def discard(self, leaf: Node) -> None:
        self._tickets.pop(leaf, None)
        if len(self._heap) > 64 + 2 * len(self._tickets):
            self._heap = [entry for entry in self._heap if self._tickets.get(entry[2]) == entry[1]]
            heapify(self._heap)

    def pop(self) -> Node:
        while True:
            _, ticket, leaf = heappop(self._heap)
            if self._tickets.get(leaf) == ticket:
                del self._tickets[leaf]
                return leaf

    def add_and_pop(self, leaf: Node) -> Node:
        if self._heap and self._heap[0][0] <= leaf.last_use:
            self.add(leaf)
            return self.pop()
        return leaf
