"""Fetches of prompts: found in the tiers, read into host memory, and held there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...messages import PagesFound
from .host_pool import Entry, HostPool, list_pieces
from .lower_tiers import LowerTiers

PAGES_AT_ONCE = 8
"""The thread reads at most this many pages before it looks at the inbox again."""


@dataclass(slots=True)
class _Fetch:
    number: int
    namespace: str
    keys: Sequence[bytes]
    """keys of the found pages, then those of a state's pieces"""
    entries: list[Entry] = field(default_factory=list)
    """held entries of the first of these pages"""


class Fetches:
    """A fetch is found, read and ended when the scheduler says so; it may be ended at any time.

    Only `places`, `state_places` and `end_restored` are called by the model's thread, the others by the
    store's.
    """

    def __init__(self, pool: HostPool, tiers: LowerTiers, pieces: int) -> None:
        """pieces: of a state"""
        self._pool = pool
        self._tiers = tiers
        self._pieces = pieces
        self._found: dict[int, _Fetch] = {}
        self._queue: deque[_Fetch] = deque()
        self._ready: dict[int, list[Entry]] = {}
        self.host_hits = 0

    def find(self, number: int, namespace: str, keys: Sequence[bytes]) -> int:
        """Begins a fetch. Returns how many of the first pages are stored; with 0 the fetch is over."""
        found = self._count(namespace, keys)
        if found:
            self._found[number] = _Fetch(number, namespace, keys[:found])
        return found

    def find_state(
        self, number: int, namespace: str, keys: Sequence[bytes], states: Sequence[bytes]
    ) -> PagesFound:
        """Begins a fetch of the pages before the last stored state and of its pieces (see `FindPages`), which
        fit into host memory together."""
        pages = self._count(namespace, keys)
        usable = states[: len(states) - len(keys) + pages]
        found = self._tiers.find(namespace, usable, self._pool.__contains__)
        for before in range(pages, pages - len(usable), -1):
            state = states[before - len(keys) - 1]
            if state not in found:
                continue
            pieces = list_pieces(state, self._pieces)
            all_keys = [*keys[: max(0, before)], *pieces]
            fits = len(all_keys) <= self._pool.places
            if fits and self._count(namespace, pieces) == len(pieces):
                self._found[number] = _Fetch(number, namespace, all_keys)
                return PagesFound(number, len(all_keys), before)
        return PagesFound(number, 0)

    def _count(self, namespace: str, keys: Sequence[bytes]) -> int:
        return self._tiers.count(namespace, keys, self._pool.__contains__) if keys else 0

    def read(self, number: int) -> None:
        """Queues a found fetch to be read into host memory."""
        self._queue.append(self._found.pop(number))

    def end(self, number: int) -> None:
        """Ends a fetch in any state."""
        self._found.pop(number, None)
        self._pool.release(self._ready.pop(number, ()))
        for fetch in [fetch for fetch in self._queue if fetch.number == number]:
            self._queue.remove(fetch)
            self._pool.release(fetch.entries)

    def end_restored(self, number: int) -> None:
        self._pool.release(self._ready.pop(number))

    def places(self, number: int, first: int, count: int) -> list[int]:
        """The places in host memory of some pages of a ready fetch."""
        return [entry.place for entry in self._ready[number][first : first + count]]

    def state_places(self, number: int) -> list[int]:
        """The places in host memory of the pieces of a ready fetch's state."""
        return [entry.place for entry in self._ready[number][-self._pieces :]]

    @property
    def busy(self) -> bool:
        return bool(self._queue)

    def advance(self) -> tuple[int, int] | None:
        """Reads a few pages of each queued fetch in turn, so that short ones do not wait for long ones.

        Returns the number of a fetch that is complete, and its number of pages.
        """
        if not self._queue:
            return None
        fetch = self._queue[0]
        more = self._read_some(fetch)
        self._queue.popleft()
        if more:
            self._queue.append(fetch)
            return None
        if self._tiers.disk is not None:
            self._tiers.disk.touch([entry.key for entry in fetch.entries])
        self._ready[fetch.number] = fetch.entries
        return fetch.number, len(fetch.entries)

    def _read_some(self, fetch: _Fetch) -> bool:
        """Reads the next pages and holds them, up to the first that was removed or does not fit into memory.

        Returns whether there may be more pages to read.
        """
        at = len(fetch.entries)
        wanted = fetch.keys[at : at + PAGES_AT_ONCE]
        held = {key: entry for key in wanted if (entry := self._pool.hold(key)) is not None}
        try:
            read = self._read_pages(fetch.namespace, [key for key in wanted if key not in held])
        except BaseException:
            self._pool.release(held.values())
            raise
        self.host_hits += len(held)
        ready = held | read
        whole = next((count for count, key in enumerate(wanted) if key not in ready), len(wanted))
        fetch.entries += [ready[key] for key in wanted[:whole]]
        self._pool.release(ready[key] for key in wanted[whole:] if key in ready)
        return whole == len(wanted) and len(fetch.entries) < len(fetch.keys)

    def _read_pages(self, namespace: str, keys: Sequence[bytes]) -> dict[bytes, Entry]:
        """Held entries of the pages with these keys that are whole and fit into memory."""
        places = {}
        for key in keys:
            entry = self._pool.reserve(key, namespace)
            if entry is None:
                break
            places[key] = entry
        found: set[bytes] = set()
        try:
            found = self._tiers.read(
                namespace, {key: self._pool.content(entry) for key, entry in places.items()}
            )
        finally:
            self._pool.release(entry for key, entry in places.items() if key not in found)
        for key in found:
            self._pool.enter(places[key], to_write=False)
        return {key: places[key] for key in keys if key in found}
