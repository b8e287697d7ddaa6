"""The prefixes that saved the most computing."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, nlargest
from itertools import count
from operator import attrgetter
from typing import NamedTuple

from .node import Node
from .packed import TOKEN_BYTES

MOST_NODES = 20_000  # visited, so that a report never takes long


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


def popular_prefixes(roots: Iterable[Node], most: int, shown_tokens: int, now: int) -> list[Prefix]:
    """The `most` prefixes with the largest hits × tokens, at most one from each branch.

    A branch continues with a child that has at least half of its parent's hits. So if one reported prefix
    extends another, the shorter has at least twice the hits. Branches with the most hits are visited first,
    so nodes that are left out because of `MOST_NODES` have few hits.
    """
    found = nlargest(most, _best_of_branches(roots), key=lambda each: each.saved)
    return [_prefix(each, shown_tokens * TOKEN_BYTES, now) for each in found]


def _prefix(found: _Found, shown_bytes: int, now: int) -> Prefix:
    node, tokens = found
    assert node.namespace is not None, "nodes without a namespace are not kept"
    sequence = node.sequence()
    idle = 0 if node.locks else now - node.last_use
    return Prefix(node.namespace, sequence[:shown_bytes], sequence[-shown_bytes:], tokens, node.hits, idle)


def _best_of_branches(roots: Iterable[Node]) -> Iterator[_Found]:
    ties = count()
    waiting: list[tuple[int, int, _Found]] = []

    def put(parents: Iterable[_Found], begun: Container[Node] = ()) -> None:
        for each in parents:
            for child in _most_hit(each.node):
                if child not in begun:
                    heappush(waiting, (-child.hits, next(ties), _below(each, child)))

    put(_Found(root, 0) for root in roots)
    seen = 0
    while waiting and seen < MOST_NODES:
        branch = _branch(heappop(waiting)[2])
        seen += sum(1 + len(each.node.children) for each in branch)
        put(branch, {each.node for each in branch})
        yield max(branch, key=lambda each: each.saved)


def _most_hit(node: Node) -> list[Node]:
    """The children with hits; if there are more than may be visited, those with the most hits."""
    hit = [child for child in node.children.values() if child.hits]
    return hit if len(hit) <= MOST_NODES else nlargest(MOST_NODES, hit, key=attrgetter("hits"))


def _branch(first: _Found) -> list[_Found]:
    branch = [first]
    while (longer := _continued(branch[-1])) is not None:
        branch.append(longer)
    return branch


def _continued(found: _Found) -> _Found | None:
    """The child that has at least half of the hits, if any."""
    most_hit = max(found.node.children.values(), key=attrgetter("hits"), default=None)
    return _below(found, most_hit) if most_hit and 2 * most_hit.hits >= found.node.hits else None


def _below(found: _Found, child: Node) -> _Found:
    return _Found(child, found.tokens + len(child.tokens) // TOKEN_BYTES)
