"""Leaves with a tail (a partial last page), which is evicted first while tails are rarely reused."""

from __future__ import annotations

from collections import OrderedDict

from .node import Node

MEMORY = 32  # requests over which the reused share is averaged
RARE = 0.25  # while the reused share of tails is lower, they count as rarely reused
SPARED = 16  # one tail in this many is kept to learn from


class TailQueue:
    """Learns from requests that match all full pages of a leaf: each uses some share of its tail, or none.

    While tails are reused often, as in conversations, a tail is evicted with the pages before it. An evicted
    tail tells nothing more about reuse, so a few are always kept.
    """

    def __init__(self) -> None:
        self._share = 1.0  # reused share of a tail, a moving average
        self.leaves: OrderedDict[Node, None] = OrderedDict()
        self._since_spared = 0

    def observe(self, share: float) -> None:
        self._share += (share - self._share) / MEMORY

    def add(self, leaf: Node) -> None:
        if self._share < RARE:
            self._since_spared = (self._since_spared + 1) % SPARED
            if self._since_spared:
                self.leaves[leaf] = None

    def discard(self, leaf: Node) -> None:
        self.leaves.pop(leaf, None)

    def pop(self) -> Node | None:
        """Removes and returns the oldest leaf, for its tail to be evicted; None if tails are reused often."""
        if not self.leaves or self._share >= RARE:
            return None
        return self.leaves.popitem(last=False)[0]
