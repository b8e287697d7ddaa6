"""The largest branches of the tree as a list of nodes, for display."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain, islice
from typing import TypeAlias

from .node import Node
from .packed import TOKEN_BYTES
from .tree import RadixTree

Prompt: TypeAlias = tuple[str | None, bytes]
"""the namespace of a request, None if it shares nothing, and its tokens as packed int32"""

MAX_VISITED = 4_096  # nodes, so that an outline never takes long


@dataclass(frozen=True, slots=True)
class OutlinedNode:
    """A node, or a root, which has no tokens. Requests, pins and leases count at every node that they use. A
    waiting request counts at every node that it would use now; if nothing matches, at the root alone."""

    page: int | None  # id of its first page; None: a root, or an evicted node
    parent: int | None  # index in the outline; None: a root
    namespace: str
    head: bytes  # first tokens, packed int32
    tokens: int
    pages: int
    hits: int  # requests that matched it after the one that created it
    idle: int  # accesses since its last use; 0 while it is locked
    requests: int  # running ones
    waiting: int
    pins: int
    leases: int
    tokens_below: int  # tokens of its descendants
    folded: int  # descendants that the outline leaves out
    keys: bytes  # page keys of an evicted node, concatenated; empty if the cache has no keys


@dataclass(frozen=True, slots=True)
class Outline:
    """`nodes` are the nodes with the most tokens from their beginning to all their leaves, parents before
    their children. `is_complete`: all nodes were visited, so the counts are those of the whole tree."""

    nodes: list[OutlinedNode]
    is_complete: bool


def draw_outline(
    roots: Iterable[Node],
    most: int,
    requests: Mapping[Node, int],
    waiting: Mapping[Node, int],
    pins: Mapping[Node, int],
    shown_tokens: int,
    now: int,
) -> Outline:
    """At most `most` nodes below `roots`, each with its first `shown_tokens` tokens.

    `requests`, `waiting` and `pins`: how many of each end at a node. Nodes near the roots are visited first.
    """
    visited = visit(roots)
    order = {node: place for place, node in enumerate(visited)}
    parents = [-1 if node.parent is None else order[node.parent] for node in visited]
    lengths = [len(node.tokens) // TOKEN_BYTES for node in visited]
    tokens = _sums(lengths, parents)
    sizes = _sums([1] * len(visited), parents)
    # A branch has no more tokens than its parent, and the parent was visited first: so it is listed too.
    places = range(len(visited))
    listed = sorted(nlargest(most, places, key=lambda place: (tokens[place], -place)))
    index = {place: number for number, place in enumerate(listed)}
    folded = {place: sizes[place] - 1 for place in listed}
    for place in listed:
        if parents[place] >= 0:
            folded[parents[place]] -= sizes[place]
    request_sums = _sums([requests.get(node, 0) for node in visited], parents)
    waiting_sums = _sums([waiting.get(node, 0) for node in visited], parents)
    pin_sums = _sums([pins.get(node, 0) for node in visited], parents)
    lease_sums = _sums([node.leases - pins.get(node, 0) for node in visited], parents)
    nodes = [
        OutlinedNode(
            page=node.first_page,
            parent=index.get(parents[place]),
            namespace=node.namespace or "",
            head=node.tokens[: shown_tokens * TOKEN_BYTES],
            tokens=lengths[place],
            pages=len(node.pages),
            hits=node.hits,
            idle=0 if node.locks else now - node.last_use,
            requests=request_sums[place],
            waiting=waiting_sums[place],
            pins=pin_sums[place],
            leases=lease_sums[place],
            tokens_below=tokens[place] - lengths[place],
            folded=folded[place],
            keys=b"" if node.pages else node.keys,
        )
        for place, node in ((place, visited[place]) for place in listed)
    ]
    return Outline(nodes, len(visited) < MAX_VISITED)


def find_ends(tree: RadixTree, prompts: Iterable[Prompt]) -> Counter[Node]:
    """How many of the prompts' longest matches end in each node, or at a root if nothing matches."""
    ends = Counter[Node]()
    for namespace, tokens in prompts:
        root = tree.roots.get(namespace)
        if root is not None:
            match = tree.find(root, tokens, len(tokens) // TOKEN_BYTES)
            partly = match.inside if match.full_pages or match.tail else None
            ends[partly or match.node] += 1
    return ends


def _sums(values: Sequence[int], parents: Sequence[int]) -> list[int]:
    """The sum of the values over each node's branch. Parents come before their children."""
    sums = list(values)
    for place in range(len(sums) - 1, -1, -1):
        if sums[place] and parents[place] >= 0:
            sums[parents[place]] += sums[place]
    return sums


def visit(roots: Iterable[Node]) -> list[Node]:
    """At most `MAX_VISITED` nodes and ghosts, parents before their children, level by level."""
    found = list(islice(roots, MAX_VISITED))
    for node in found:
        found += islice(chain(node.children.values(), node.ghosts.values()), MAX_VISITED - len(found))
    return found
