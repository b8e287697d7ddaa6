"""Pages that the tree gave up and that are still to be copied out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, islice
from typing import NamedTuple

from ...radix_cache import KeyedPages, split_keys


class _Evicted(NamedTuple):
    """`number` counts the evicted; of one prefix a page before another has the higher one."""

    number: int
    namespace: str
    key: bytes
    page: int


class EvictedPages:
    """By page, in the order in which they are to be copied out if nothing else is said.

    That is the order in which they were evicted, so that of one prefix the later pages are copied first and
    lost first too.
    """

    def __init__(self) -> None:
        self._pages: OrderedDict[int, _Evicted] = OrderedDict()
        self._places: dict[bytes, int] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def add(self, groups: Iterable[KeyedPages]) -> None:
        for group in groups:
            for key, page in reversed(list(zip(split_keys(group.keys), group.pages, strict=True))):
                if page in self._pages:
                    self._remove(page)
                self._number += 1
                self._pages[page] = _Evicted(self._number, group.namespace, key, page)
                self._places[key] = page

    def hurry(self, keys: Sequence[bytes]) -> None:
        """Puts those of them that are here before all others, the first one first."""
        for key in reversed(keys):
            if key in self._places:
                self._pages.move_to_end(self._places[key], last=False)

    def take(self, due: Iterable[int], most: int) -> list[KeyedPages]:
        """Those of the pages `due` that are here, and of the others as many as make `most` of them."""
        taken = [self._remove(page) for page in due if page in self._pages]
        more = list(islice(self._pages, max(0, most - len(taken))))
        return _grouped([*taken, *map(self._remove, more)])

    def everything(self) -> list[KeyedPages]:
        return _grouped(self._pages.values())

    def forget(self, is_meant: Callable[[str], bool]) -> None:
        """Those of such namespaces."""
        for page in [page for page, evicted in self._pages.items() if is_meant(evicted.namespace)]:
            self._remove(page)

    def _remove(self, page: int) -> _Evicted:
        evicted = self._pages.pop(page)
        if self._places.get(evicted.key) == page:  # else it was computed and evicted again
            del self._places[evicted.key]
        return evicted


def _grouped(evicted: Iterable[_Evicted]) -> list[KeyedPages]:
    """By namespace, and each prefix from its first page on."""
    newest_first = sorted(evicted, reverse=True)
    return [
        KeyedPages(namespace, b"".join(each.key for each in some), [each.page for each in some])
        for namespace, group in groupby(newest_first, lambda each: each.namespace)
        if (some := list(group))
    ]
