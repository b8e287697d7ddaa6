"""Pages with their keys, as the slower tiers of the cache store them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .node import Node
from .packed import KEY_BYTES, TOKEN_BYTES
from .page_keys import PageKeys
from .tree import Match, RadixTree


class KeyedPages(NamedTuple):
    """Consecutive full pages and their concatenated keys."""

    namespace: str
    keys: bytes
    pages: list[int]


class Missing(NamedTuple):
    """The keys of a sequence's full pages that are not in the tree, from page `first` on."""

    first: int
    keys: bytes


def keyed(keys: PageKeys, node: Node) -> KeyedPages | None:
    """A node's full pages; None if it has none, or no namespace."""
    if node.namespace is None:
        return None
    names = keys.of(node)
    full = list(node.pages[: len(names) // KEY_BYTES])
    return KeyedPages(node.namespace, names, full) if full else None


def missing(keys: PageKeys, tree: RadixTree, match: Match, tokens: bytes) -> Missing:
    """The full pages of `tokens` after `match`, its longest match."""
    first = match.depth // tree.page_size + match.pages
    if match.inside is not None and match.pages:
        before = keys.of(match.inside)[: match.pages * KEY_BYTES][-KEY_BYTES:]
    else:
        before = keys.last(match.node)
    return Missing(first, keys.following(before, tokens[first * tree.page_size * TOKEN_BYTES :]))


def everything(keys: PageKeys, tree: RadixTree) -> Iterator[KeyedPages]:
    """All full pages of the tree, most recently used first, but parents before their children."""
    listed: set[Node] = set()
    nodes = [node for root in tree.roots.values() for node in root.subtree()]
    for node in sorted(nodes, key=lambda node: node.last_use, reverse=True):
        fresh = [above for above in node.path() if above not in listed]
        for above in reversed(fresh):
            listed.add(above)
            pages = keyed(keys, above)
            if pages is not None:
                yield pages
