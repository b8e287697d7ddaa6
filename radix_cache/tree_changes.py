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


class ChangeFeed:
    """The changes that one observer has not taken yet."""

    def __init__(self) -> None:
        self._changes: list[TreeChange] = []

    def take(self) -> list[TreeChange]:
        """Returns the changes since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def add_stored(self, stored: PagesStored) -> None:
        self._changes.append(stored)

    def add_removed(self, pages: list[int]) -> None:
        last = self._changes[-1] if self._changes else None
        if isinstance(last, PagesRemoved):
            last.pages.extend(pages)
        else:
            self._changes.append(PagesRemoved(list(pages)))


class TreeChanges:
    """Tells each feed the changes of full pages. A page's id names it as long as it is in the tree, so splits
    are no changes: they move no page."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self.feeds: list[ChangeFeed] = []

    def note_stored(self, node: Node, first: int = 0) -> None:
        """Call it when the node has got its pages from index `first` on."""
        if (stored := _describe(node, first, self._page_bytes)) is not None:
            for feed in self.feeds:
                feed.add_stored(stored)

    def note_removed(self, node: Node) -> None:
        """Call it before a leaf loses its pages."""
        if pages := list(node.pages[: len(node.tokens) // self._page_bytes][::-1]):
            for feed in self.feeds:
                feed.add_removed(pages)


def list_stored(roots: Iterable[Node], page_bytes: int) -> Iterator[PagesStored]:
    """All full pages below the roots, parents before their children."""
    for root in roots:
        for node in root.subtree():
            if (stored := _describe(node, 0, page_bytes)) is not None:
                yield stored


def _describe(node: Node, first: int, page_bytes: int) -> PagesStored | None:
    """A node's full pages from index `first` on; None if there are none, or if the node is a root."""
    full = len(node.tokens) // page_bytes
    if node.parent is None or node.namespace is None or full <= first:
        return None
    before = node.pages[:first] or node.parent.pages
    tokens = node.tokens[first * page_bytes : full * page_bytes]
    return PagesStored(
        node.namespace, before[-1] if before else NO_PAGE, tokens, tuple(node.pages[first:full])
    )
