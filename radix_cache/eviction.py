"""The interface of an eviction policy, and the simplest one: least recently used."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Protocol

from .node import Node


class EvictionPolicy(Protocol):
    """Orders the evictable leaves of one cache, and may learn from the use of nodes.

    The tree reports what happens to nodes. Evicted nodes stay in the tree as ghosts, up to `history` pages in
    all. A ghost whose tokens are requested again becomes the same node as before, and is reported as a hit.
    `Node.mark` belongs to the policy; when a node is split, both parts keep it.
    """

    history: int

    def advance(self, now: int) -> None:
        """Tells the policy the time, in accesses."""

    def hit(self, node: Node) -> None:
        """Tells the policy that a request uses a node or ghost that existed before."""

    def rest(self, node: Node, generated: int) -> None:
        """Tells the policy that the node's last lock ended, that of a request with `generated` tokens."""

    def shorten(self, node: Node, size: int) -> None:
        """Tells the policy that the tree is about to remove the last `size` bytes of the node's edge."""

    def forget(self, node: Node) -> None:
        """Tells the policy that the node is removed and leaves no ghost."""

    def add(self, leaf: Node) -> None:
        """Makes the leaf evictable."""

    def discard(self, leaf: Node) -> None:
        """Makes the leaf not evictable. No effect if it was not."""

    def observe_tail(self, share: float) -> None:
        """Tells the policy that a request uses all full pages of a leaf, and that share of its tail."""

    def pop_tail(self) -> Node | None:
        """Returns a leaf whose tail is evicted before any leaf, or None. The leaf stays evictable."""
        ...

    def pop(self) -> Node:
        """Removes and returns the next leaf to evict; there must be one."""
        ...

    def add_and_pop(self, leaf: Node) -> Node:
        """Adds the leaf, then removes and returns the next one to evict, which may be the same."""
        ...

    def __len__(self) -> int:
        """Number of evictable leaves."""
        ...


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
