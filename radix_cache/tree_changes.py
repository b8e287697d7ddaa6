"""What the tree has got and lost, for observers in other processes that keep a copy of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .node import Node

NO_PAGE = -1


class PagesStored(NamedTuple):
    """Full pages that the tree has got. They follow page `after`, or begin a sequence if it is NO_PAGE."""

    namespace: str
    after: int
    tokens: bytes
    pages: tuple[int, ...]


class PagesRemoved(NamedTuple):
    """Full pages that the tree has lost, in order: no page is lost before those that follow it."""

    pages: list[int]


TreeChange = PagesStored | PagesRemoved


class TreeChanges:
    """Collects the changes of full pages. A page's id names it as long as it is in the tree, so splits, which
    move no page, are no changes."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._changes: list[TreeChange] = []

    def take(self) -> list[TreeChange]:
        """Returns the changes since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def note_stored(self, node: Node, first: int = 0) -> None:
        """Call it when the node has got its pages from index `first` on."""
        if (stored := self._describe(node, first)) is not None:
            self._changes.append(stored)

    def note_removed(self, node: Node) -> None:
        """Call it before a leaf loses its pages."""
        pages = node.pages[: len(node.tokens) // self._page_bytes][::-1]
        if not pages:
            return
        last = self._changes[-1] if self._changes else None
        if isinstance(last, PagesRemoved):
            last.pages.extend(pages)
        else:
            self._changes.append(PagesRemoved(list(pages)))

    def list_all(self, roots: Iterable[Node]) -> Iterator[PagesStored]:
        """All full pages below the roots, parents before their children."""
        for root in roots:
            for node in root.subtree():
                if (stored := self._describe(node, 0)) is not None:
                    yield stored

    def _describe(self, node: Node, first: int) -> PagesStored | None:
        """A node's full pages from index `first` on; None if there are none, or if the node is a root."""
        full = len(node.tokens) // self._page_bytes
        if node.parent is None or node.namespace is None or full <= first:
            return None
        before = node.pages[:first] or node.parent.pages
        tokens = node.tokens[first * self._page_bytes : full * self._page_bytes]
        return PagesStored(
            node.namespace, before[-1] if before else NO_PAGE, tokens, tuple(node.pages[first:full])
        )
