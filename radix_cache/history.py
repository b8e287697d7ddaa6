"""Ghosts: evicted nodes without pages, so that the policy learns from their next use."""

from __future__ import annotations

from collections import OrderedDict

from .eviction import EvictionPolicy
from .node import Node
from .packed import common_bytes

MANY = 4_096  # ghosts; beyond twice this number, only a sample of the evicted nodes become ghosts


class History:
    """Keeps ghosts below the remaining nodes of their branch, and drops the oldest first.

    A ghost has whole pages. A child and a ghost of one parent never have the same first page. Once there
    are n × `MANY` ghosts, n ≥ 2, only one in n² further evicted nodes becomes a ghost. Nodes with ghosts
    below them always do.
    """

    def __init__(self, policy: EvictionPolicy, page_bytes: int) -> None:
        self.num_pages = 0
        self.nodes: OrderedDict[Node, int] = OrderedDict()  # ghost -> `_evicted` at which it is dropped
        self._policy = policy
        self._horizon = policy.history * page_bytes
        self._page_bytes = page_bytes
        self._evicted = 0  # bytes of tokens evicted since the start
        self._passed_over = 0  # nodes evicted since the last one that became a ghost

    def keep(self, node: Node) -> None:
        """Makes a ghost of a node that has just left its parent's children, if it belongs to the sample."""
        size = len(node.tokens)
        self._evicted += size
        if size >= self._page_bytes and self._horizon:
            density = len(self.nodes) // MANY
            self._passed_over += 1
            if self._passed_over >= density * density or node.ghosts:
                self._passed_over = 0
                self._remember(node)
                return
        self._policy.forget(node)

    def _remember(self, node: Node) -> None:
        node.pages = ()
        if len(node.tokens) % self._page_bytes:
            self.drop_tail(node)
        if len(node.ghosts) == 1:
            node = self._join(node)
        assert node.parent is not None
        node.parent.link_ghost(node)
        self.nodes[node] = self._evicted + self._horizon
        self.num_pages += len(node.tokens) // self._page_bytes

    def drop_tail(self, node: Node) -> None:
        """Cuts the node to whole pages."""
        rest = len(node.tokens) % self._page_bytes
        self._policy.shorten(node, rest)
        node.tokens = node.tokens[:-rest]

    def forget_oldest(self) -> None:
        """Drops the ghosts beyond the limits of age and number."""
        nodes, evicted, most = self.nodes, self._evicted, self._policy.history
        while nodes:
            oldest = next(iter(nodes))
            if nodes[oldest] >= evicted and self.num_pages <= most:
                return
            self._drop(oldest)

    def recall(self, parent: Node, tokens: bytes, position: int) -> Node | None:
        """Removes and returns the ghost below `parent` with the page at `position`, cut to common pages."""
        node = parent.ghosts.get(tokens[position : position + self._page_bytes])
        if node is None:
            return None
        common = common_bytes(node.tokens, tokens[position : position + len(node.tokens)])
        shared = common - common % self._page_bytes
        if shared < len(node.tokens):
            return self._cut(node, shared)
        self._leave(node)
        del parent.ghosts[node.key]
        return node

    def drop_below(self, node: Node) -> None:
        """Drops all ghosts below `node`."""
        for ghost in list(node.ghosts.values()):
            self._drop(ghost)

    def _cut(self, node: Node, position: int) -> Node:
        parent, key = node.parent, node.key
        assert parent is not None
        upper = node.cut(position // self._page_bytes)
        upper.link_ghost(node)
        del parent.ghosts[key]
        self.num_pages -= position // self._page_bytes
        return upper

    def _join(self, node: Node) -> Node:
        """Joins `node` with the ghost that was cut off its end earlier, if both have the same history."""
        [below] = node.ghosts.values()
        if below.mark is not node.mark or (below.hits, below.last_use) != (node.hits, node.last_use):
            return node
        self._leave(below)
        below.parent, below.key = node.parent, node.key
        below.tokens, below.keys = node.tokens + below.tokens, node.keys + below.keys
        return below

    def _drop(self, node: Node) -> None:
        assert node.parent is not None
        del node.parent.ghosts[node.key]
        self._forget(node)
        if not node.ghosts:
            return
        doomed = list(node.ghosts.values())
        for ghost in doomed:
            doomed += ghost.ghosts.values()
            self._forget(ghost)

    def _forget(self, node: Node) -> None:
        del self.nodes[node]
        self.num_pages -= len(node.tokens) // self._page_bytes
        self._policy.forget(node)

    def _leave(self, node: Node) -> None:
        del self.nodes[node]
        self.num_pages -= len(node.tokens) // self._page_bytes
