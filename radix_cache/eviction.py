"""Which unlocked leaf goes first: the face of a policy, and least recently used, the plainest one."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Protocol

from .node import Node


class EvictionPolicy(Protocol):
    """Keeps the evictable leaves of one cache in the order of its choice, and may learn from their use.

    The tree reports what happens to nodes. Evicted nodes are remembered below what is left of their
    branch, up to `history` pages in all; one whose tokens come again is the same node as before, and is
    reported as hit. `Node.mark` is the policy's; both parts of a node that is cut have it.
    """

    history: int

    def advance(self, now: int) -> None:
        """So many accesses have been made."""

    def hit(self, node: Node) -> None:
        """A request goes through a node that was cached or remembered."""

    def rest(self, node: Node, generated: int) -> None:
        """Nobody uses the node any more; the last request that did has generated so many tokens."""

    def shorten(self, node: Node, size: int) -> None:
        """The last `size` bytes of the node's edge are going for good."""

    def forget(self, node: Node) -> None:
        """The node is gone for good."""

    def add(self, leaf: Node) -> None:
        """The leaf may be evicted from now on."""

    def discard(self, leaf: Node) -> None:
        """It may not any more, if it might have been."""

    def reach_tail(self, share: float) -> None:
        """A request goes on from all full pages of a leaf; of the last one, not full, it uses that share."""

    def pop_tail(self) -> Node | None:
        """A leaf to lose its last page, which is not full, before others go. It stays in the order."""
        ...

    def pop(self) -> Node:
        """Removes and returns the leaf to evict; there must be one."""
        ...

    def add_and_pop(self, leaf: Node) -> Node:
        """Adds the leaf, then removes and returns the one to evict, which may be the same."""
        ...

    def __len__(self) -> int:
        """How many leaves may be evicted."""
        ...


class LeastRecentlyUsed:
    """Evicts the leaf whose last request ended longest ago: a heap whose stale entries are skipped.

    A node is used at least as late as anything below it, so a branch goes from its tip upwards.
    """

    history = 0

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Node]] = []
        self._tickets: dict[Node, int] = {}  # of the valid entries
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

    def reach_tail(self, share: float) -> None:
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
