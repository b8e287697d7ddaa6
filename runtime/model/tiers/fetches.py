"""What prompts ask the page store for: looked for, brought into host memory, and held there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .host_pool import Entry, HostPool
from .lower_tiers import LowerTiers

PAGES_AT_ONCE = 8  # read between two looks at who asks


@dataclass(slots=True)
class _Fetch:
    """`keys` are those that were found, `entries` the first of them, as far as they are held by now."""

    number: int
    namespace: str
    keys: Sequence[bytes]
    entries: list[Entry] = field(default_factory=list)


class Fetches:
    """A fetch is found, brought and ended, each when the scheduler says so, or ended before.

    All but `places` and `end_restored` belong to the store's thread.
    """

    def __init__(self, pool: HostPool, tiers: LowerTiers) -> None:
        self._pool = pool
        self._tiers = tiers
        self._found: dict[int, _Fetch] = {}
        self._turns: deque[_Fetch] = deque()
        self._brought: dict[int, list[Entry]] = {}
        self.host_hits = 0

    def find(self, number: int, namespace: str, keys: Sequence[bytes]) -> int:
        """How many of the first pages are stored; with none of them the fetch is over."""
        found = self._tiers.count(namespace, keys, self._pool.__contains__)
        if found:
            self._found[number] = _Fetch(number, namespace, keys[:found])
        return found

    def bring(self, number: int) -> None:
        self._turns.append(self._found.pop(number))

    def end(self, number: int) -> None:
        """Whatever has become of it by now: nobody wants it."""
        self._found.pop(number, None)
        self._pool.let_go(self._brought.pop(number, ()))
        for fetch in [fetch for fetch in self._turns if fetch.number == number]:
            self._turns.remove(fetch)
            self._pool.let_go(fetch.entries)

    def end_restored(self, number: int) -> None:
        self._pool.let_go(self._brought.pop(number))

    def places(self, number: int, first: int, count: int) -> list[int]:
        """Where pages of a fetch that was brought are in host memory."""
        return [entry.place for entry in self._brought[number][first : first + count]]

    @property
    def busy(self) -> bool:
        return bool(self._turns)

    def advance(self) -> tuple[int, int] | None:
        """A few pages of the fetch whose turn it is: who wants little does not wait for who wants much.

        Returns the number and the pages of one that has all it can get.
        """
        if not self._turns:
            return None
        fetch = self._turns[0]
        more = self._bring_some(fetch)
        self._turns.popleft()
        if more:
            self._turns.append(fetch)
            return None
        if self._tiers.disk is not None:
            self._tiers.disk.touch([entry.key for entry in fetch.entries])
        self._brought[fetch.number] = fetch.entries
        return fetch.number, len(fetch.entries)

    def _bring_some(self, fetch: _Fetch) -> bool:
        """Brings pages into memory and holds them, up to the first that is gone or finds no room.

        Returns whether there may be more.
        """
        at = len(fetch.entries)
        wanted = fetch.keys[at : at + PAGES_AT_ONCE]
        held = {key: entry for key in wanted if (entry := self._pool.hold(key)) is not None}
        try:
            read = self._read(fetch.namespace, [key for key in wanted if key not in held])
        except BaseException:
            self._pool.let_go(held.values())
            raise
        self.host_hits += len(held)
        ready = held | read
        whole = next((count for count, key in enumerate(wanted) if key not in ready), len(wanted))
        fetch.entries += [ready[key] for key in wanted[:whole]]
        self._pool.let_go(ready[key] for key in wanted[whole:] if key in ready)
        return whole == len(wanted) and len(fetch.entries) < len(fetch.keys)

    def _read(self, namespace: str, keys: Sequence[bytes]) -> dict[bytes, Entry]:
        """Entries, held, of those of `keys` that are there whole and find room."""
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
            self._pool.let_go(entry for key, entry in places.items() if key not in found)
        for key in found:
            self._pool.enter(places[key], to_write=False)
        return {key: places[key] for key in keys if key in found}
