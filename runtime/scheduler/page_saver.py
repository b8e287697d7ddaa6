"""Which pages the page store takes in, and when: as they are evicted, or as they are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ...radix_cache import KEY_BYTES, KeyedPages, PrefixCache, split_keys
from ..messages import Message, SavedPages, SavePages, StepPlan
from .evicted_pages import EvictedPages
from .plan import StepInFlight
from .request import Request

SAVED_TOKENS = 512
"""copied out with a step, beside those of pages that the step overwrites"""


class PageSaver:
    """An evicted page is saved at the latest with the step that overwrites it.

    With `write_through` pages are saved soon after they are full, so evicted ones mostly are there already.
    """

    def __init__(self, cache: PrefixCache, write_through: bool) -> None:
        self._cache = cache
        self._write_through = write_through
        self._most = max(1, SAVED_TOKENS // cache.page_size)
        self._evicted = EvictedPages()
        self._copied_by: dict[int, frozenset[bytes]] = {}  # steps in flight

    def before(self, plan: StepPlan, flight: StepInFlight) -> list[SavedPages]:
        """What is copied out before a step is run."""
        self._take_evicted()
        if not self._evicted:
            return []
        chosen = self._evicted.take(_overwritten(plan, flight, self._cache.page_size), self._most)
        self._copied_by[plan.step] = frozenset(key for group in chosen for key in split_keys(group.keys))
        return [_saved(group) for group in chosen]

    def is_over(self, step: int) -> None:
        """What was copied out with it can be found from now on."""
        self._copied_by.pop(step, None)

    def is_coming(self, key: bytes) -> bool:
        """Whether a page was evicted and can't be found yet."""
        self._take_evicted()
        return key in self._evicted or any(key in keys for keys in self._copied_by.values())

    def hurry(self, keys: Sequence[bytes]) -> None:
        """Copies these out before others: somebody waits for them."""
        self._take_evicted()
        self._evicted.hurry(keys)

    def through(self, requests: Iterable[Request]) -> list[Message]:
        """The full pages that these who run have now and had not before."""
        saves = [save for request in requests if (save := self._fresh(request)) is not None]
        return [SavePages(saves)] if saves else []

    def keys(self, request: Request) -> bytes:
        """Of the full pages that a request has, if they may have been saved."""
        pages = self._full(request)
        return self._keys(request, pages) if pages else b""

    def at_the_end(self) -> list[SavedPages]:
        """What would be lost with the KV cache, that which was used last first."""
        self._take_evicted()
        return [_saved(group) for group in [*self._cache.everything(), *self._evicted.everything()]]

    def forget(self, is_meant: Callable[[str], bool]) -> None:
        """Saves nothing that was evicted of such namespaces."""
        self._take_evicted()
        self._evicted.forget(is_meant)

    def _take_evicted(self) -> None:
        self._evicted.add(self._cache.take_evicted())

    def _fresh(self, request: Request) -> SavedPages | None:
        home = request.residence
        first, last = home.saved_pages, self._full(request)
        if last <= first:
            return None
        home.saved_pages = last
        assert request.namespace is not None
        keys = self._keys(request, last)[first * KEY_BYTES :]
        return _saved(KeyedPages(request.namespace, keys, home.pages[first:last]))

    def _full(self, request: Request) -> int:
        """Of how many pages the steps that were planned leave the KV whole, if it is to be kept."""
        home = request.residence
        kept = self._write_through and request.namespace is not None and home.last_step and not home.faulty
        return min(home.planned, request.length) // self._cache.page_size if kept else 0

    def _keys(self, request: Request, pages: int) -> bytes:
        """Of its first pages; it remembers them."""
        assert request.namespace is not None, "nobody may find what is in no namespace"
        size = self._cache.page_size
        known = len(request.keys) // KEY_BYTES
        tokens = request.slice(known * size, pages * size)
        request.keys += self._cache.keys(request.namespace, tokens, after=request.keys[-KEY_BYTES:])
        return request.keys[: pages * KEY_BYTES]


def _overwritten(plan: StepPlan, flight: StepInFlight, page_size: int) -> Iterator[int]:
    """The pages that a step writes."""
    for row, request in zip(plan.rows, flight.rows, strict=True):
        end = request.residence.planned
        yield from request.residence.pages[row.start // page_size : -(-end // page_size)]
    for part in plan.restores:
        yield from np.frombuffer(part.pages, np.int32).tolist()
    for copy in plan.copies:
        yield copy.destination


def _saved(pages: KeyedPages) -> SavedPages:
    return SavedPages(pages.namespace, pages.keys, np.array(pages.pages, np.int32).tobytes())
