"""Decides which pages and states the page store saves: evicted ones, and with write-through computed ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from ...radix_cache import KEY_BYTES, KeyedPages, KeyedState, PrefixCache, split_keys
from ..messages import SavedPages, SavedState, SavePages, StepPlan
from .evicted_pages import EvictedPages
from .plan import StepInFlight
from .request import Request

SAVED_TOKENS = 512
"""A step saves evicted pages of up to this many tokens, or more if it overwrites more. With write-through,
pages are saved once they have this many tokens together."""


class PageSaver:
    """An evicted page is saved at the latest with the step that overwrites it.

    With `write_through` full pages are saved once they are computed, so most pages are stored when evicted.
    """

    def __init__(self, cache: PrefixCache, write_through: bool) -> None:
        self._cache = cache
        self._write_through = write_through
        self._most = max(1, SAVED_TOKENS // cache.page_size)
        self._evicted = EvictedPages()
        self._evicted_states: list[KeyedState] = []
        self._copied_by: dict[int, frozenset[bytes]] = {}  # keys of what each step in flight copies

    def choose_before(self, plan: StepPlan, flight: StepInFlight) -> list[SavedPages]:
        """The evicted pages to copy to the store before a step runs."""
        self._take_evicted()
        if not self._evicted:
            return []
        chosen = self._evicted.take(_list_overwritten(plan, flight), self._most)
        self._copied_by[plan.step] = frozenset(key for group in chosen for key in split_keys(group.keys))
        return [_pack(group) for group in chosen]

    def take_states(self, step: int) -> list[SavedState]:
        """The evicted states, all of which the next step copies before it can overwrite them."""
        self._take_evicted()
        evicted, self._evicted_states = self._evicted_states, []
        if evicted:
            copied = self._copied_by.get(step, frozenset())
            self._copied_by[step] = copied.union(state.key for state in evicted)
        return list(map(_pack_state, evicted))

    def step_done(self, step: int) -> None:
        """Notes that the store can find what was copied with this step."""
        self._copied_by.pop(step, None)

    def is_in_copy(self, key: bytes) -> bool:
        """Whether a page or state was evicted and the store cannot find it yet."""
        self._take_evicted()
        is_evicted = key in self._evicted or any(state.key == key for state in self._evicted_states)
        return is_evicted or any(key in keys for keys in self._copied_by.values())

    def prioritize(self, keys: Sequence[bytes]) -> None:
        """Copies these pages before others, because a request waits for them."""
        self._take_evicted()
        self._evicted.prioritize(keys)

    def write_through(self, requests: Sequence[Request], at_once: bool = False) -> list[SavePages]:
        """Messages that save the new full pages of these requests; no messages while there are few pages.

        at_once: save even a few pages, and the windowed pages before the end
        """
        fresh = sum(
            max(0, self._count_full(request) - request.allocation.saved_pages) for request in requests
        )
        if fresh < self._most and not at_once:
            return []
        states = [state for request in requests for state in self._take_fresh_states(request)]
        saves = [save for request in requests if (save := self._take_fresh(request)) is not None]
        if at_once:
            saves += [save for request in requests for save in self._list_windows(request)]
        return [SavePages(saves, states)] if saves or states else []

    def find_keys(self, request: Request) -> bytes:
        """Keys of a request's full pages that may be stored; empty without write-through."""
        pages = self._count_full(request)
        return self._keys(request, pages) if pages else b""

    def name_used(self, request: Request, keys: bytes) -> list[bytes]:
        """Names what the request used beside the pages of `keys`: for each windowed group the keys of its
        pages before the places where the request began and ended, or else the keys of all states."""
        assert self._cache.keys is not None, "a cache with a page store has keys"
        allocation, size = request.allocation, self._cache.page_size
        if not allocation.lock.windows:
            return self._cache.keys.name_others(keys)
        last = len(keys) // KEY_BYTES
        begin = min(max(allocation.lock.matched, allocation.restore_end) // size, last)
        used = []
        for table in allocation.lock.windows:
            kept = [range(table.group.find_first_kept(end * size), end) for end in (begin, last)]
            names = [keys[index * KEY_BYTES :][:KEY_BYTES] for index in sorted({*kept[0], *kept[1]})]
            used.append(self._cache.keys.name_others(b"".join(names))[table.group.number - 1])
        return used

    def list_remaining(self) -> list[SavedPages]:
        """All full pages in the KV cache, most recently used first."""
        self._take_evicted()
        cached = [] if self._cache.keys is None else self._cache.keys.list_pages()
        return [_pack(group) for group in [*cached, *self._evicted.list_pages()]]

    def list_remaining_states(self) -> list[SavedState]:
        """All checkpoints at ends of pages in the KV cache, in the same order."""
        if not self._cache.stores_states or self._cache.keys is None:
            return []
        return list(map(_pack_state, [*self._cache.keys.list_states(), *self._evicted_states]))

    def forget(self, matches: Callable[[str], bool]) -> None:
        """Drops evicted pages and states of matching namespaces."""
        self._take_evicted()
        self._evicted.forget(matches)
        self._evicted_states = [state for state in self._evicted_states if not matches(state.namespace)]

    def discard(self, keys: Collection[bytes]) -> None:
        """Drops the evicted pages and states with these keys, which may be wrong."""
        self._take_evicted()
        self._evicted.discard(keys)
        self._evicted_states = [state for state in self._evicted_states if state.key not in keys]

    def _take_evicted(self) -> None:
        if self._cache.keys is not None:
            self._evicted.add(self._cache.keys.take_evicted())
            self._evicted_states += self._cache.keys.take_evicted_states()

    def _take_fresh(self, request: Request) -> SavedPages | None:
        allocation = request.allocation
        first, last = allocation.saved_pages, self._count_full(request)
        if last <= first:
            return None
        allocation.saved_pages = last
        assert request.namespace is not None
        keys = self._keys(request, last)[first * KEY_BYTES :]
        size = self._cache.page_size
        pages = allocation.lock.pages_at(first * size, last * size)
        saved = _pack(KeyedPages(request.namespace, keys, pages))
        saved.is_sent = request.saved_from is not None
        return saved

    def _list_windows(self, request: Request) -> Iterator[SavedPages]:
        """The windowed pages with which another request can go on after the last full page that this one has
        computed; none if it has computed no full page."""
        full, size = self._count_full(request), self._cache.page_size
        allocation = request.allocation
        if full * size <= max(allocation.lock.matched, allocation.restore_end):
            return
        for table in allocation.lock.windows:
            first = max(table.first, table.group.find_first_kept(full * size))
            pages = [page.id for page in table.pages[first:full] if page is not None]
            if pages and first + len(pages) == full:
                assert request.namespace is not None and self._cache.keys is not None
                page_keys = self._keys(request, full)[first * KEY_BYTES :]
                keys = self._cache.keys.name_others(page_keys)[table.group.number - 1]
                yield _pack(KeyedPages(request.namespace, keys, pages, table.group.number))

    def _take_fresh_states(self, request: Request) -> Iterator[SavedState]:
        """The request's checkpoints at ends of pages that were not offered to the page store."""
        allocation, size = request.allocation, self._cache.page_size
        for position, checkpoint in allocation.lock.list_checkpoints() if self._cache.stores_states else ():
            is_fresh = allocation.saved_state < position <= self._count_full(request) * size
            if is_fresh and position % size == 0:
                allocation.saved_state = position
                assert request.namespace is not None and self._cache.keys is not None
                page_key = self._keys(request, position // size)[-KEY_BYTES:]
                [key] = self._cache.keys.name_others(page_key)
                yield SavedState(request.namespace, key, checkpoint.place)

    def _count_full(self, request: Request) -> int:
        """How many full pages the request has once its planned steps are done; 0 if it saves no pages."""
        allocation = request.allocation
        kept = (
            (self._write_through or request.saved_from is not None)
            and request.namespace is not None
            and allocation.last_step
            and not allocation.faulty
        )
        return min(allocation.planned, request.length) // self._cache.page_size if kept else 0

    def _keys(self, request: Request, pages: int) -> bytes:
        """Keys of the request's first pages; computed once."""
        assert request.namespace is not None, "a request without a namespace shares no pages"
        size = self._cache.page_size
        known = len(request.stored.keys) // KEY_BYTES
        tokens = request.slice(known * size, pages * size)
        assert self._cache.keys is not None, "a cache with a page store has keys"
        request.stored.keys += self._cache.keys.compute(
            request.namespace, tokens, after=request.stored.keys[-KEY_BYTES:]
        )
        return request.stored.keys[: pages * KEY_BYTES]


def _list_overwritten(plan: StepPlan, flight: StepInFlight) -> Iterator[tuple[int, int]]:
    """The group and number of the pages that a step may write."""
    for request, row in flight.rows:
        start = row.start if row.tokens else request.length - 1
        yield from request.allocation.lock.list_written(start, request.allocation.planned)
    for part in plan.restores:
        yield from ((part.group, page) for page in np.frombuffer(part.pages, np.int32).tolist())
    for copy in plan.copies:
        yield copy.group, copy.destination


def _pack_state(state: KeyedState) -> SavedState:
    return SavedState(state.namespace, state.key, state.place)


def _pack(pages: KeyedPages) -> SavedPages:
    return SavedPages(pages.namespace, pages.keys, np.array(pages.pages, np.int32).tobytes(), pages.group)
