"""Leaves whose last page is not full, to lose it first as long as such pages are rarely gone on from."""

from __future__ import annotations

from collections import OrderedDict

from .node import Node

MEMORY = 32  # decisions that count
RARE = 0.25
SPARED = 16  # one in so many stays, to learn from


class Tails:
    """Learns from requests that use all full pages of a leaf: they part from its tail or go on from it.

    As long as it is often gone on from, as in conversations, such a page goes with those before it. One that
    is gone can't be missed, so a few are left where they are to learn from.
    """

    def __init__(self) -> None:
        self._share = 1.0  # that was used of those that a request came to
        self.leaves: OrderedDict[Node, None] = OrderedDict()
        self._passed_over = 0

    def reached(self, share: float) -> None:
        self._share += (share - self._share) / MEMORY

    def add(self, leaf: Node) -> None:
        if self._share < RARE:
            self._passed_over = (self._passed_over + 1) % SPARED
            if self._passed_over:
                self.leaves[leaf] = None

    def discard(self, leaf: Node) -> None:
        self.leaves.pop(leaf, None)

    def pop(self) -> Node | None:
        """The one that has waited longest, if any is to go."""
        if not self.leaves or self._share >= RARE:
            return None
        return self.leaves.popitem(last=False)[0]
