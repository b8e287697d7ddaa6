"""Which prefixes have saved the most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, nlargest
from itertools import count

from .node import Node
from .packed import TOKEN_BYTES

MOST_NODES = 20_000  # looked at, so that a report never takes long
ALL_FIRST = -(1 << 62)


@dataclass(frozen=True, slots=True)
class Prefix:
    """All tokens from the root to the end of a node."""

    namespace: str
    head: bytes  # its first tokens, packed int32
    tokens: int
    hits: int  # requests that began with it
    idle: int  # accesses since its last use; 0 while it is used


def popular_prefixes(roots: Iterable[Node], most: int, head_tokens: int, now: int) -> list[Prefix]:
    """The `most` prefixes with the largest hits × tokens.

    A prefix is left out if every hit went on to a longer one. Nodes are looked at from the most hit
    downwards: beyond `MOST_NODES` what is left out has few hits.
    """
    found = nlargest(most, _by_hits(roots), key=lambda item: item[0].hits * item[1])
    return [_prefix(node, tokens, head_tokens, now) for node, tokens in found]


def _prefix(node: Node, tokens: int, head_tokens: int, now: int) -> Prefix:
    assert node.namespace is not None, "nothing is kept of those who share with nobody"
    head = node.sequence()[: head_tokens * TOKEN_BYTES]
    return Prefix(node.namespace, head, tokens, node.hits, 0 if node.locks else now - node.last_use)


def _by_hits(roots: Iterable[Node]) -> Iterator[tuple[Node, int]]:
    """Nodes that were hit, each with the tokens down to its end."""
    ties = count()
    waiting = [(ALL_FIRST, next(ties), root, 0) for root in roots]
    seen = 0
    while waiting and seen < MOST_NODES:
        _, _, node, depth = heappop(waiting)
        seen += 1 + len(node.children)
        hit = [child for child in node.children.values() if child.hits]
        if node.hits and all(child.hits < node.hits for child in hit):
            yield node, depth
        for child in hit:
            below = depth + len(child.tokens) // TOKEN_BYTES
            heappush(waiting, (-child.hits, next(ties), child, below))
