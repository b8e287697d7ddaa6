"""How long a match is that every windowed group can serve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .lock import PrefixMatch
from .windows import WindowGroup, WindowPage, WindowPages, is_there


class NeededPages(NamedTuple):
    """The pages of a group that the token after a match sees."""

    group: WindowGroup
    first: int  # index of the first page
    pages: WindowPages  # from the first one on; None: it is lost

    @property
    def present(self) -> list[WindowPage]:
        return [page for page in self.pages if page is not None]

    @property
    def lacking(self) -> list[int]:
        """Indices of the lost pages."""
        return [index for index, page in enumerate(self.pages, self.first) if page is None]


class PathWindows:
    """The windowed pages of all tokens of a match."""

    def __init__(self, match: PrefixMatch, groups: Sequence[WindowGroup]) -> None:
        self._groups = groups
        self._pages: list[WindowPages] = [[] for _ in groups]
        path = [node for node in reversed(list(match.node.path())) if node.parent is not None]
        for pages, number in zip(self._pages, range(len(groups)), strict=True):
            for node in path:
                pages += node.windows[number]
            if match.inside is not None:
                pages += match.inside.windows[number][: match.inside_pages + (match.tail > 0)]

    def longest(self, limit: int) -> int:
        """The longest match of at most `limit` tokens that every group can serve."""
        while limit and (lost := self._find_lost(limit)) is not None:
            limit = lost * self._groups[0].page_size
        return limit

    def needed(self, length: int) -> Iterator[NeededPages]:
        """Of each group the pages that a match of `length` tokens needs, which may be longer than this
        one."""
        for group, pages in zip(self._groups, self._pages, strict=True):
            first, end = group.find_first(length), -(-length // group.page_size)
            some = [page if is_there(page) else None for page in pages[first:end]]
            yield NeededPages(group, first, some + [None] * (end - first - len(some)))

    def has(self, group: WindowGroup, index: int) -> bool:
        """Whether page `index` of the group is there."""
        pages = self._pages[group.number - 1]
        return index < len(pages) and is_there(pages[index])

    def _find_lost(self, length: int) -> int | None:
        """The first page from which on a match of `length` tokens lacks a page; None if it lacks none."""
        lost = [
            index
            for group, pages in zip(self._groups, self._pages, strict=True)
            for index in self._list_lost(group, pages, length)
        ]
        return min(lost, default=None)

    def _list_lost(self, group: WindowGroup, pages: WindowPages, length: int) -> list[int]:
        """The last page that a match of `length` tokens lacks in a group, in a list; an empty one if none."""
        for index in range(-(-length // group.page_size) - 1, group.find_first(length) - 1, -1):
            if not is_there(pages[index]):
                return [index]
        return []
