"""Fetches of prompts: found in the tiers, read into host memory, and held there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate, chain

import numpy as np

from ...messages import FindPages, NeededEntries, PagesFound
from .host_pool import KEY_BYTES, Entry, HostPool, list_pieces, split_keys
from .lower_tiers import LowerTiers
from .prefill_peers import PrefillPeers

NO_KEY = bytes(KEY_BYTES)
"""stands for a page that is in the KV cache"""
PAGES_AT_ONCE = 8
"""The thread reads at most this many pages before it looks at the inbox again."""


@dataclass(slots=True)
class _Fetch:
    number: int
    namespace: str
    keys: Sequence[bytes]
    """of the found pages, then of the pieces of each windowed group's pages or of a state"""
    starts: Sequence[int] = (0,)
    """where the pages' keys begin, then those of each windowed group or of the state"""
    stored: int | None = None
    """how many of the keys are stored; a prefill server has promised the others. None: all are stored"""
    entries: list[Entry] = field(default_factory=list)
    """the entries read so far, in the order of `keys`; they are held"""

    @property
    def is_promised(self) -> bool:
        """Whether the next page comes from a prefill server."""
        return self.stored is not None and len(self.entries) >= self.stored


class _Needs:
    """What a windowed group or recurrent layers need at each possible end of a fetch. Ends are numbers of
    pages from the first asked one."""

    def __init__(self, entries: NeededEntries, pages: int) -> None:
        """pages: that were asked for"""
        self._keys = split_keys(entries.keys)
        self._needed: list[int] = np.frombuffer(entries.needed, np.int32).tolist()
        self._first_end = pages - len(self._needed) + 1
        self._first_key = pages - len(self._keys)  # the page of the first key, from the first asked page

    def list_keys(self, pages: int) -> list[bytes]:
        """The keys of what any end up to `pages` may need."""
        return [key for key in self._keys[: max(0, pages - self._first_key)] if key != NO_KEY]

    def list_ends(self, pages: int, stored: Set[bytes]) -> Iterator[int]:
        """The ends up to `pages` of which all needed keys are stored."""
        lacking, seen = -1, 0
        for end, needed in enumerate(self._needed, self._first_end):
            if end > pages:
                return
            last = end - self._first_key
            for index in range(seen, last):
                if self._keys[index] != NO_KEY and self._keys[index] not in stored:
                    lacking = index
            seen = last
            if lacking < last - needed:
                yield end

    def list_needed(self, end: int) -> list[bytes]:
        """The keys that are needed at an end."""
        last = end - self._first_key
        keys = self._keys[last - self._needed[end - self._first_end] : last]
        return [key for key in keys if key != NO_KEY]


class Fetches:
    """A fetch is found, read and ended when the scheduler says so; it may be ended at any time.

    Only `places` and `end_restored` are called by the model's thread, the others by the store's.
    """

    def __init__(self, pool: HostPool, tiers: LowerTiers, pieces: Sequence[int]) -> None:
        """pieces: see `PageStore`"""
        self._pool = pool
        self._tiers = tiers
        self._pieces = pieces
        self._found: dict[int, _Fetch] = {}
        self._queue: deque[_Fetch] = deque()
        self._ready: dict[int, _Fetch] = {}
        self.peers: PrefillPeers | None = None
        self.host_hits = 0

    def find(self, asked: FindPages) -> PagesFound:
        """Begins a fetch: of the pages that are stored, and after them of those that a prefill server was
        asked for. Without any it is over."""
        if asked.others:
            return self._find_end(asked.fetch, asked.namespace, split_keys(asked.keys), asked.others)
        keys = split_keys(asked.keys)
        found = stored = self._count(asked.namespace, keys)
        if self.peers is not None and asked.prompt:
            first = asked.first + stored
            found += self.peers.ask(asked.fetch, asked.namespace, asked.prompt, first, keys[stored:])
        if found:
            self._found[asked.fetch] = _Fetch(asked.fetch, asked.namespace, keys[:found], stored=stored)
        return PagesFound(asked.fetch, found)

    def _find_end(
        self, number: int, namespace: str, keys: Sequence[bytes], others: Sequence[NeededEntries]
    ) -> PagesFound:
        """Begins a fetch of the pages before the last end at which all others are stored too (see
        `FindPages`), and of those, which fit into host memory together."""
        pages, lacked = self._count(namespace, keys), len(keys)
        needs = [_Needs(each, lacked) for each in others]
        wanted = {key for each in needs for key in each.list_keys(pages)}
        stored = self._tiers.find(namespace, [*wanted], self._pool.__contains__)
        ends = [set(each.list_ends(pages, stored)) for each in needs]
        for end in sorted(set.intersection(*ends), reverse=True):
            pieces = [
                [piece for key in each.list_needed(end) for piece in list_pieces(key, count)]
                for each, count in zip(needs, self._pieces[1:], strict=True)
            ]
            parts = [keys[: max(0, end)], *pieces]
            all_keys, all_pieces = list(chain(*parts)), list(chain(*pieces))
            fits = len(all_keys) <= self._pool.places
            if fits and self._count(namespace, all_pieces) == len(all_pieces):
                starts = list(accumulate(map(len, parts[:-1]), initial=0))
                self._found[number] = _Fetch(number, namespace, all_keys, starts)
                return PagesFound(number, len(all_keys), end)
        return PagesFound(number, 0)

    def _count(self, namespace: str, keys: Sequence[bytes]) -> int:
        return self._tiers.count(namespace, keys, self._pool.__contains__) if keys else 0

    def read(self, number: int) -> None:
        """Queues a found fetch to be read into host memory."""
        self._queue.append(self._found.pop(number))
        if self.peers is not None:
            self.peers.pull(number)

    def end(self, number: int) -> bool:
        """Ends a fetch in any state. Returns whether it was being read, so that the scheduler has no
        `PagesFetched` of it yet."""
        self._found.pop(number, None)
        self._end_promise(number)
        if number in self._ready:
            self.end_restored(number)
        fetch = next((fetch for fetch in self._queue if fetch.number == number), None)
        if fetch is None:
            return False
        self._queue.remove(fetch)
        self._pool.release(fetch.entries)
        return True

    def end_restored(self, number: int) -> None:
        self._pool.release(self._ready.pop(number).entries)

    def places(self, number: int, first: int, count: int, group: int = 0) -> list[int]:
        """The places in host memory of some pages of a ready fetch, each with all its pieces.

        group: of layers; 1 of a model with recurrent layers has one page, the state
        """
        fetch, pieces = self._ready[number], self._pieces[group]
        start = fetch.starts[group] + first * pieces
        return [entry.place for entry in fetch.entries[start : start + count * pieces]]

    @property
    def is_busy(self) -> bool:
        """Whether `advance` has something to read now."""
        return any(map(self._can_read, self._queue))

    def _can_read(self, fetch: _Fetch) -> bool:
        return not fetch.is_promised or self.peers is None or self.peers.has_news(fetch.number)

    def advance(self) -> tuple[int, int] | None:
        """Reads a few pages of each queued fetch in turn, so that short ones do not wait for long ones.

        Returns the number of a fetch that is complete, and its number of pages.
        """
        fetch = next(filter(self._can_read, self._queue), None)
        if fetch is None:
            return None
        more = self._take_promised(fetch) if fetch.is_promised else self._read_some(fetch)
        self._queue.remove(fetch)
        if more:
            self._queue.append(fetch)
            return None
        self._end_promise(fetch.number)
        if self._tiers.disk is not None:
            self._tiers.disk.touch([entry.key for entry in fetch.entries])
        self._ready[fetch.number] = fetch
        return fetch.number, len(fetch.entries)

    def _take_promised(self, fetch: _Fetch) -> bool:
        """Takes the pages that a prefill server has sent. Returns whether more may come."""
        arrived, more = self.peers.take(fetch.number) if self.peers is not None else ([], False)
        fetch.entries += arrived
        return more and len(fetch.entries) < len(fetch.keys)

    def _end_promise(self, number: int) -> None:
        if self.peers is not None:
            self.peers.end(number)

    def _read_some(self, fetch: _Fetch) -> bool:
        """Reads the next pages and holds them, up to the first that was removed or does not fit into memory.

        Returns whether there may be more pages to read.
        """
        at = len(fetch.entries)
        wanted = fetch.keys[at : fetch.stored][:PAGES_AT_ONCE]
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
