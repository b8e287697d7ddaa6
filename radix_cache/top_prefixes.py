"""The prefixes that saved the most computing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, nlargest
from itertools import count
from operator import attrgetter
from typing import NamedTuple

from .node import Node
from .packed import TOKEN_BYTES

MAX_NODES = 20_000  # visited or listed as children, so that a report never takes long


@dataclass(frozen=True, slots=True)
class Prefix:
    """All tokens from the root to the end of a node."""

    namespace: str
    head: bytes  # first tokens, packed int32
    tail: bytes  # last tokens, equally many
    tokens: int  # length
    hits: int  # requests that began with it
    idle: int  # accesses since its last use; 0 while it is locked


class _Found(NamedTuple):
    node: Node
    tokens: int  # from the root to its end

    @property
    def saved(self) -> int:
        return self.node.hits * self.tokens


def find_top_prefixes(roots: Iterable[Node], most: int, shown_tokens: int, now: int) -> list[Prefix]:
    """The `most` prefixes with the largest hits × tokens, at most one from each branch.

    A branch continues with a child that has at least half of its parent's hits. So if one reported prefix
    extends another, the shorter has at least twice the hits.
    """
    best: dict[Node, _Found] = {}  # by the first node of each branch
    for branch, found in _visit_by_hits(roots):
        if branch not in best or found.saved > best[branch].saved:
            best[branch] = found
    largest = nlargest(most, best.values(), key=lambda each: each.saved)
    return [_describe(each, shown_tokens * TOKEN_BYTES, now) for each in largest]


def _describe(found: _Found, shown_bytes: int, now: int) -> Prefix:
    node, tokens = found
    assert node.namespace is not None, "nodes without a namespace are not kept"
    sequence = node.sequence()
    idle = 0 if node.locks else now - node.last_use
    return Prefix(node.namespace, sequence[:shown_bytes], sequence[-shown_bytes:], tokens, node.hits, idle)


def _visit_by_hits(roots: Iterable[Node]) -> Iterator[tuple[Node, _Found]]:
    """Nodes with hits, those with the most hits first, each with the first node of its branch.

    So nodes that are left out because of `MAX_NODES` have few hits.
    """
    ties = count()
    waiting = [(0, next(ties), root, _Found(root, 0)) for root in roots]
    seen = 0
    while waiting and seen < MAX_NODES:
        _, _, branch, found = heappop(waiting)
        node = found.node
        children = _most_hit(node)
        heir = max(children, key=attrgetter("hits"), default=None)
        if node.parent is not None:
            seen += 1 + len(node.children)
            yield branch, found
        for child in children:
            continues = child is heir and node.parent is not None and 2 * child.hits >= node.hits
            below = _Found(child, found.tokens + len(child.tokens) // TOKEN_BYTES)
            heappush(waiting, (-child.hits, next(ties), branch if continues else child, below))


def _most_hit(node: Node) -> list[Node]:
    """The children with hits; if there are more than may be visited, those with the most hits."""
    hit = [child for child in node.children.values() if child.hits]
    return hit if len(hit) <= MAX_NODES else nlargest(MAX_NODES, hit, key=attrgetter("hits"))
