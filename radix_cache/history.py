"""Evicted nodes, remembered without their pages, so that the policy can learn from their next use."""

from __future__ import annotations

from collections import OrderedDict

from .eviction import EvictionPolicy
from .node import Node
from .packed import common_bytes


class History:
    """Hangs evicted nodes below what is left of their branch; those evicted first are forgotten first.

    They are whole pages long. A child and a remembered node under one parent never share their first page.
    """

    def __init__(self, policy: EvictionPolicy, page_bytes: int) -> None:
        self.num_pages = 0
        self.nodes: OrderedDict[Node, None] = OrderedDict()  # in the order of their eviction
        self._policy = policy
        self._page_bytes = page_bytes

    def keep(self, node: Node) -> None:
        """Remembers a node that has just left its parent's children, if it may."""
        if not self._policy.history or len(node.tokens) < self._page_bytes:
            self._policy.forget(node)
            return
        assert node.parent is not None
        node.pages = []
        self._join(node)
        node.parent.link_ghost(self._key(node), node)
        self.nodes[node] = None
        self.num_pages += len(node.tokens) // self._page_bytes
        while self.num_pages > self._policy.history:
            self._drop(next(iter(self.nodes)))

    def recall(self, parent: Node, tokens: bytes, position: int) -> Node | None:
        """Gives back the node below `parent` with the page at `position`, as far as its tokens agree."""
        node = parent.ghosts.get(tokens[position : position + self._page_bytes])
        if node is None:
            return None
        common = common_bytes(node.tokens, tokens[position : position + len(node.tokens)])
        shared = common - common % self._page_bytes
        if shared < len(node.tokens):
            return self._cut(node, shared)
        self._leave(node)
        del parent.ghosts[self._key(node)]
        return node

    def drop_below(self, node: Node) -> None:
        """Forgets what hangs below `node`."""
        for ghost in list(node.ghosts.values()):
            self._drop(ghost)

    def _cut(self, node: Node, position: int) -> Node:
        parent, key = node.parent, self._key(node)
        assert parent is not None
        upper = node.cut(position, 0)
        self._policy.split(upper, node)
        upper.link_ghost(self._key(node), node)
        del parent.ghosts[key]
        self.num_pages -= position // self._page_bytes
        return upper

    def _join(self, node: Node) -> None:
        """Takes in what was cut off the end of `node` before, if that has the same past."""
        if len(node.ghosts) != 1:
            return
        [below] = node.ghosts.values()
        if (below.hits, below.last_use) != (node.hits, node.last_use):
            return
        self._leave(below)
        self._policy.forget(below)
        node.tokens += below.tokens
        node.ghosts = below.ghosts
        for ghost in node.ghosts.values():
            ghost.parent = node

    def _drop(self, node: Node) -> None:
        assert node.parent is not None
        del node.parent.ghosts[self._key(node)]
        doomed = [node]
        for each in doomed:
            doomed += each.ghosts.values()
            self._leave(each)
            self._policy.forget(each)

    def _leave(self, node: Node) -> None:
        del self.nodes[node]
        self.num_pages -= len(node.tokens) // self._page_bytes

    def _key(self, node: Node) -> bytes:
        return node.tokens[: self._page_bytes]
