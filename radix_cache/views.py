"""Read-only views of the tree for clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from .divergence import Divergence, divergence
from .lock import Lock
from .outline import Outline, Prompt, ends_of_matches, outline, visit
from .packed import TOKEN_BYTES
from .popular import Prefix, popular_prefixes
from .tree import RadixTree


class CacheViews:
    def __init__(self, tree: RadixTree, locks: Collection[Lock]) -> None:
        """`locks` are those of requests."""
        self._tree, self._locks = tree, locks

    def namespaces(self, scope: str = "") -> dict[str, int]:
        """Pages in the tree by namespace, of those whose names begin with `scope`."""
        pages_in = self._tree.pages_in.items()
        return {
            name: pages for name, pages in pages_in if name is not None and pages and name.startswith(scope)
        }

    def divergence(self, namespace: str, tokens: bytes, most: int) -> Divergence:
        """Where `tokens` leave the tree, and at most `most` tokens that the tree has there instead."""
        return divergence(self._tree, namespace, tokens, most)

    def popular(self, namespaces: Sequence[str], most: int, shown_tokens: int) -> list[Prefix]:
        """The prefixes that saved the most computing, each with its first and last `shown_tokens` tokens."""
        roots = [self._tree.roots[name] for name in namespaces if name in self._tree.roots]
        return popular_prefixes(roots, most, shown_tokens, self._tree.now)

    def outline(
        self, namespaces: Sequence[str], most: int, shown_tokens: int, waiting: Iterable[Prompt] = ()
    ) -> Outline:
        """The largest branches of these namespaces, at most `most` nodes with their first tokens. `waiting`
        are the prompts of waiting requests."""
        roots = [self._tree.roots[name] for name in namespaces if name in self._tree.roots]
        pins = Counter(each.node for each in self._tree.leases if each.node and not each.is_breakable)
        locks = Counter(lock.node for lock in self._locks if lock.node is not None)
        ends = ends_of_matches(self._tree, waiting)
        return outline(roots, most, locks, ends, pins, shown_tokens, self._tree.now)

    def edge(self, namespace: str, page: int, most: int) -> bytes | None:
        """The first `most` tokens of the node whose first page is `page`; None if it is not found in time."""
        root = self._tree.roots.get(namespace)
        nodes = visit([root]) if root is not None else []
        found = (node.tokens[: most * TOKEN_BYTES] for node in nodes if node.first_page == page)
        return next(found, None)
