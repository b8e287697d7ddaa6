"""Reports on the contents of the tree, for clients. They change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from .lock import Lock
from .node import Node
from .outline import Outline, Prompt, draw_outline, find_ends, visit
from .packed import TOKEN_BYTES
from .top_prefixes import Prefix, find_top_prefixes
from .tree import Match, RadixTree


class Divergence(NamedTuple):
    """Where a sequence leaves the tree, how far evicted nodes continue it, and what the tree has instead."""

    matched: int  # leading tokens in the tree
    remembered: int  # leading tokens in the tree, or evicted from it lately
    behind: bytes  # packed tokens that follow the match in the tree, along the path that was used last


class CacheReports:
    def __init__(self, tree: RadixTree, locks: Collection[Lock]) -> None:
        """`locks` are those of requests."""
        self._tree, self._locks = tree, locks

    def namespaces(self, scope: str = "") -> dict[str, int]:
        """Pages in the tree by namespace, of those whose names begin with `scope`."""
        pages_in = self._tree.pages_in.items()
        return {
            name: pages for name, pages in pages_in if name is not None and pages and name.startswith(scope)
        }

    def divergence(self, namespace: str | None, tokens: bytes, most: int) -> Divergence:
        """Where `tokens` leave the tree, and at most `most` tokens that the tree has there instead."""
        root = self._tree.roots.get(namespace)
        if root is None:
            return Divergence(0, 0, b"")
        match = self._tree.find(root, tokens, len(tokens) // TOKEN_BYTES)
        matched = match.depth + match.full_pages * self._tree.page_size + match.tail
        remembered = max(matched, _count_remembered(self._tree, match, tokens))
        return Divergence(matched, remembered, _read_behind(self._tree, match, most * TOKEN_BYTES))

    def top_prefixes(self, namespaces: Sequence[str], most: int, shown_tokens: int) -> list[Prefix]:
        """The prefixes that saved the most computing, each with its first and last `shown_tokens` tokens."""
        return find_top_prefixes(self._find_roots(namespaces), most, shown_tokens, self._tree.now)

    def outline(
        self, namespaces: Sequence[str], most: int, shown_tokens: int, waiting: Iterable[Prompt] = ()
    ) -> Outline:
        """The largest branches of these namespaces, at most `most` nodes with their first tokens. `waiting`
        are the prompts of waiting requests."""
        pins = Counter(each.node for each in self._tree.leases if each.node and not each.is_breakable)
        locks = Counter(lock.node for lock in self._locks if lock.node is not None)
        ends = find_ends(self._tree, waiting)
        roots = self._find_roots(namespaces)
        return draw_outline(roots, most, locks, ends, pins, shown_tokens, self._tree.now)

    def edge(self, namespace: str, page: int, most: int) -> bytes | None:
        """The first `most` tokens of the node whose first page is `page`; None if it is not found in time."""
        nodes = visit(self._find_roots([namespace]))
        found = (node.tokens[: most * TOKEN_BYTES] for node in nodes if node.first_page == page)
        return next(found, None)

    def _find_roots(self, namespaces: Sequence[str]) -> list[Node]:
        return [self._tree.roots[name] for name in namespaces if name in self._tree.roots]


def _count_remembered(tree: RadixTree, match: Match, tokens: bytes) -> int:
    """How many leading tokens are in matched nodes or in the ghosts that continue the match."""
    node, position = match.node, match.depth * TOKEN_BYTES
    if match.inside is not None and match.full_pages == len(match.inside.tokens) // tree.page_bytes:
        node, position = match.inside, position + match.full_pages * tree.page_bytes
    while ghost := node.ghosts.get(tokens[position : position + tree.page_bytes]):
        size = len(ghost.tokens)
        while size and not tokens.startswith(ghost.tokens[:size], position):
            size -= tree.page_bytes
        position += size
        if size < len(ghost.tokens):
            break
        node = ghost
    return position // TOKEN_BYTES


def _read_behind(tree: RadixTree, match: Match, most: int) -> bytes:
    """At most `most` bytes of the tokens that follow the match, along the path that was used last."""
    node, found = match.node, b""
    if match.inside is not None:
        node = match.inside
        found = node.tokens[match.full_pages * tree.page_bytes + match.tail * TOKEN_BYTES :]
    while len(found) < most and node.children:
        node = max(node.children.values(), key=lambda child: (child.locks > 0, child.last_use))
        found += node.tokens
    return found[:most]
