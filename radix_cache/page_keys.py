"""The keys under which the slower tiers store pages: hashes of a page's tokens and all tokens before it."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from .lock import PrefixMatch
from .node import Node
from .packed import KEY_BYTES
from .tree import RadixTree


class KeyedPages(NamedTuple):
    """Consecutive full pages and their concatenated keys."""

    namespace: str
    keys: bytes
    pages: list[int]


class Missing(NamedTuple):
    """The keys of a sequence's full pages that are not in the tree, from page `first` on."""

    first: int
    keys: bytes


class PageKeys:
    """The key of a full page: a hash of the model, the namespace and all tokens up to the page's end.

    Each key hashes the key before it and a page's tokens, so equal keys mean equal prefixes.
    `model`, at most 64 bytes, identifies everything else that a page's content depends on.
    """

    def __init__(self, model: bytes, page_bytes: int) -> None:
        self._model = model
        self._page_bytes = page_bytes

    def start(self, namespace: str) -> bytes:
        """The key from which the hash chain of a namespace starts."""
        return blake2b(namespace.encode(), digest_size=KEY_BYTES, key=self._model).digest()

    def follow(self, key: bytes, tokens: bytes) -> bytes:
        """The keys of the full pages of `tokens`, which follow the page with `key`; concatenated."""
        keys, size = [], self._page_bytes
        for at in range(0, len(tokens) - size + 1, size):
            key = blake2b(key + tokens[at : at + size], digest_size=KEY_BYTES).digest()
            keys.append(key)
        return b"".join(keys)

    def compute(self, node: Node) -> bytes:
        """The keys of a node's full pages; computed once."""
        unnamed = []
        for above in node.path():
            if len(above.keys) == self._full_pages(above) * KEY_BYTES and above.keys:
                break
            unnamed.append(above)
        for each in reversed(unnamed):
            self._complete(each)
        return node.keys

    def find_last(self, node: Node) -> bytes:
        """The key at the end of a node of full pages, or of a root."""
        if node.parent is None:
            assert node.namespace is not None, "nodes without a namespace have no keys"
            return self.start(node.namespace)
        return self.compute(node)[-KEY_BYTES:]

    def _complete(self, node: Node) -> None:
        if node.parent is None:
            return
        before = node.keys[-KEY_BYTES:] or node.parent.keys[-KEY_BYTES:] or self.find_last(node.parent)
        known = len(node.keys) // KEY_BYTES * self._page_bytes
        node.keys += self.follow(before, node.tokens[known:])

    def _full_pages(self, node: Node) -> int:
        return len(node.tokens) // self._page_bytes


def key_node(keys: PageKeys, node: Node) -> KeyedPages | None:
    """A node's full pages with their keys; None if it has no full page or no namespace."""
    if node.namespace is None:
        return None
    names = keys.compute(node)
    full = list(node.pages[: len(names) // KEY_BYTES])
    return KeyedPages(node.namespace, names, full) if full else None


def find_missing(keys: PageKeys, tree: RadixTree, match: PrefixMatch, tokens: bytes) -> Missing:
    """The keys of the full pages of `tokens` after `match`, the longest match of `tokens`."""
    if match.inside is not None and match.inside_pages:
        before = keys.compute(match.inside)[: match.inside_pages * KEY_BYTES][-KEY_BYTES:]
    else:
        before = keys.find_last(match.node)
    return Missing(match.full_pages, keys.follow(before, tokens[match.full_pages * tree.page_bytes :]))


def list_all(keys: PageKeys, tree: RadixTree) -> Iterator[KeyedPages]:
    """All full pages of the tree, most recently used first, but parents before their children."""
    listed: set[Node] = set()
    nodes = [node for root in tree.roots.values() for node in root.subtree()]
    for node in sorted(nodes, key=lambda node: node.last_use, reverse=True):
        fresh = [above for above in node.path() if above not in listed]
        for above in reversed(fresh):
            listed.add(above)
            pages = key_node(keys, above)
            if pages is not None:
                yield pages
