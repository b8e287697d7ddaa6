"""The interface of an eviction policy."""

from __future__ import annotations

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
        """Tells the policy that the node's last lock, of a request with `generated` output tokens, ended."""

    def shorten(self, node: Node, size: int) -> None:
        """Tells the policy that the tree is about to remove the last `size` bytes of the node's edge."""

    def forget(self, node: Node) -> None:
        """Tells the policy that the node is removed and leaves no ghost."""

    def add(self, leaf: Node) -> None:
        """Makes the leaf evictable."""

    def discard(self, leaf: Node) -> None:
        """Makes the leaf not evictable. No effect if it was not."""

    def observe_tail(self, share: float) -> None:
        """Tells the policy that a request uses all full pages of a leaf and the share `share` of its tail."""

    def pop_tail(self) -> Node | None:
        """Returns a leaf whose tail is evicted before any leaf, or None. The leaf stays evictable."""
        ...

    def pop(self) -> Node:
        """Removes and returns the next leaf to evict. The policy must have a leaf."""
        ...

    def add_and_pop(self, leaf: Node) -> Node:
        """Adds the leaf, then removes and returns the next one to evict, which may be the same."""
        ...

    def __len__(self) -> int:
        """Number of evictable leaves."""
        ...
