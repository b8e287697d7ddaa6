"""Evicted pages that are still to be copied to the page store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby, islice
from typing import NamedTuple

from ...radix_cache import KeyedPages, split_keys


class _Evicted(NamedTuple):
    number: int  # number of the eviction; earlier pages of a prefix have higher numbers than later ones
    namespace: str
    key: bytes
    page: tuple[int, int]  # group of layers, and number in the group


class EvictedPages:
    """Pages are copied in the order of their eviction, unless some are prioritized.

    Later pages of a prefix are copied before earlier ones, because the store drops the oldest copies first.
    """

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[int, int], _Evicted] = OrderedDict()
        self._page_of: dict[bytes, tuple[int, int]] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, key: bytes) -> bool:
        return key in self._page_of

    def add(self, evicted: Iterable[KeyedPages]) -> None:
        for part in evicted:
            for key, number in reversed(list(zip(split_keys(part.keys), part.pages, strict=True))):
                page = part.group, number
                if page in self._pages:
                    self._remove(page)
                self._number += 1
                self._pages[page] = _Evicted(self._number, part.namespace, key, page)
                self._page_of[key] = page

    def prioritize(self, keys: Sequence[bytes]) -> None:
        """Moves the pages with these keys to the front, in this order."""
        for key in reversed(keys):
            if key in self._page_of:
                self._pages.move_to_end(self._page_of[key], last=False)

    def take(self, due: Iterable[tuple[int, int]], most: int) -> list[KeyedPages]:
        """Removes and returns the pages of `due` (group and page) that are in this queue, then others, up to
        `most` in all."""
        taken = [self._remove(page) for page in due if page in self._pages]
        more = list(islice(self._pages, max(0, most - len(taken))))
        return _group([*taken, *map(self._remove, more)])

    def list_pages(self) -> list[KeyedPages]:
        return _group(self._pages.values())

    def forget(self, matches: Callable[[str], bool]) -> None:
        """Drops pages of matching namespaces."""
        for page in [page for page, evicted in self._pages.items() if matches(evicted.namespace)]:
            self._remove(page)

    def discard(self, keys: Collection[bytes]) -> None:
        """Drops pages with these keys."""
        for page in [page for page, evicted in self._pages.items() if evicted.key in keys]:
            self._remove(page)

    def _remove(self, page: tuple[int, int]) -> _Evicted:
        evicted = self._pages.pop(page)
        if self._page_of.get(evicted.key) == page:  # otherwise the page was computed and evicted again
            del self._page_of[evicted.key]
        return evicted


def _group(evicted: Iterable[_Evicted]) -> list[KeyedPages]:
    """Joins consecutive evictions of one namespace and group of layers, the newest first. So the earlier
    pages of a prefix, which are evicted after the later ones, come first."""
    newest_first = sorted(evicted, reverse=True)
    return [
        KeyedPages(namespace, b"".join(each.key for each in some), [each.page[1] for each in some], group)
        for (namespace, group), joined in groupby(newest_first, lambda each: (each.namespace, each.page[0]))
        if (some := list(joined))
    ]
