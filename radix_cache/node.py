"""A node of the radix tree: an edge of packed tokens and the pages that hold their KV."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from .packed import common_bytes


@dataclass(slots=True, eq=False)
class Node:
    """One run of pages below its parent.

    A full node's edge is a whole number of pages. A partial leaf's edge is shorter than one page, and
    it has no children. A root has neither edge nor pages.
    """

    namespace: str
    parent: Node | None
    tokens: bytes  # the edge, packed int32
    pages: list[int]
    last_use: int
    locks: int = 0  # leases that end here + children that are locked
    ticket: int = 0  # of the valid entry in the eviction queue, 0 if none
    children: dict[bytes, Node] = field(default_factory=dict)  # by the first page of their edge
    order: list[bytes] = field(default_factory=list)  # the keys of `children`, sorted

    def link(self, key: bytes, child: Node) -> None:
        self.children[key] = child
        insort(self.order, key)

    def unlink(self, key: bytes) -> None:
        del self.children[key]
        del self.order[bisect_left(self.order, key)]

    def nearest_child(self, tokens: bytes) -> tuple[Node | None, int]:
        """The child that shares the most leading bytes with `tokens` (at most a page), and how many.

        Among sorted strings the longest common prefix with a new one is found at its neighbours.
        """
        index = bisect_left(self.order, tokens)
        best, best_common = None, 0
        for key in self.order[max(index - 1, 0) : index + 1]:
            common = common_bytes(key, tokens)
            if common > best_common:
                best, best_common = self.children[key], common
        return best, best_common

    def covers(self, tokens: bytes) -> bool:
        """Whether some child's first page begins with `tokens`."""
        index = bisect_left(self.order, tokens)
        return index < len(self.order) and self.order[index].startswith(tokens)

    def child_before(self, key: bytes) -> Node | None:
        """The child whose key sorts just before `key`."""
        index = bisect_left(self.order, key)
        return self.children[self.order[index - 1]] if index else None

    def path(self) -> Iterator[Node]:
        """This node and its ancestors, the root last."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def subtree(self) -> Iterator[Node]:
        """This node and all below it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def sequence(self) -> bytes:
        """All packed tokens from the root to the end of this node."""
        return b"".join(reversed([node.tokens for node in self.path()]))
