"""The largest branches of the tree as a list of nodes, for display."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain, islice

from .node import Node
from .packed import TOKEN_BYTES

MOST_VISITED = 8_192  # nodes, so that an outline never takes long


@dataclass(frozen=True, slots=True)
class OutlinedNode:
    """A node, or a root, which has no tokens. Requests, pins and leases count at all nodes that they use."""

    page: int | None  # id of its first page; None: a root, or an evicted node
    parent: int | None  # index in the outline; None: a root
    namespace: str
    head: bytes  # first tokens, packed int32
    tokens: int
    pages: int
    hits: int  # requests that matched it after the one that created it
    idle: int  # accesses since its last use; 0 while it is locked
    requests: int
    pins: int
    leases: int
    tokens_below: int  # in its descendants
    folded: int  # descendants that the outline leaves out


@dataclass(frozen=True, slots=True)
class Outline:
    """`nodes` are the nodes with the most tokens from their beginning to all their leaves, parents before
    their children. `is_complete`: all nodes were visited, so the counts are those of the whole tree."""

    nodes: list[OutlinedNode]
    is_complete: bool


@dataclass(slots=True)
class _Branch:
    """A node with the sums over it and its descendants."""

    node: Node
    tokens: int
    nodes: int = 1
    requests: int = 0
    pins: int = 0
    leases: int = 0

    def add(self, below: _Branch) -> None:
        self.tokens += below.tokens
        self.nodes += below.nodes
        self.requests += below.requests
        self.pins += below.pins
        self.leases += below.leases


def outline(
    roots: Iterable[Node],
    most: int,
    requests: Mapping[Node, int],
    pins: Mapping[Node, int],
    shown_tokens: int,
    now: int,
) -> Outline:
    """At most `most` nodes below `roots`, each with its first `shown_tokens` tokens.

    `requests` and `pins` are the numbers of those that end at a node. Nodes near the roots are visited first.
    """
    visited = visit(roots)
    branches = {node: _branch(node, requests, pins) for node in visited}
    for node in reversed(visited):
        if node.parent is not None:
            branches[node.parent].add(branches[node])
    # A branch has no more tokens than its parent, and the parent was visited first: so it is listed too.
    order = dict(zip(visited, range(len(visited)), strict=True))
    listed = nlargest(most, visited, key=lambda node: (branches[node].tokens, -order[node]))
    listed.sort(key=order.__getitem__)
    index = dict(zip(listed, range(len(listed)), strict=True))
    folded = {node: branches[node].nodes - 1 for node in listed}
    for node in listed:
        if node.parent is not None:
            folded[node.parent] -= branches[node].nodes
    shown = shown_tokens * TOKEN_BYTES
    nodes = [_outlined(branches[node], index, folded[node], shown, now) for node in listed]
    return Outline(nodes, len(visited) < MOST_VISITED)


def visit(roots: Iterable[Node]) -> list[Node]:
    """At most `MOST_VISITED` nodes and ghosts, parents before their children, level by level."""
    found = list(islice(roots, MOST_VISITED))
    for node in found:
        found += islice(chain(node.children.values(), node.ghosts.values()), MOST_VISITED - len(found))
    return found


def _branch(node: Node, requests: Mapping[Node, int], pins: Mapping[Node, int]) -> _Branch:
    return _Branch(
        node,
        len(node.tokens) // TOKEN_BYTES,
        requests=requests.get(node, 0),
        pins=pins.get(node, 0),
        leases=node.leases,
    )


def _outlined(branch: _Branch, index: Mapping[Node, int], folded: int, shown: int, now: int) -> OutlinedNode:
    node = branch.node
    assert node.namespace is not None, "nodes without a namespace are not kept"
    tokens = len(node.tokens) // TOKEN_BYTES
    return OutlinedNode(
        page=node.pages[0] if node.pages else None,
        parent=None if node.parent is None else index[node.parent],
        namespace=node.namespace,
        head=node.tokens[:shown],
        tokens=tokens,
        pages=len(node.pages),
        hits=node.hits,
        idle=0 if node.locks else now - node.last_use,
        requests=branch.requests,
        pins=branch.pins,
        leases=branch.leases,
        tokens_below=branch.tokens - tokens,
        folded=folded,
    )
