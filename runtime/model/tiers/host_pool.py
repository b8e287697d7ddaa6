"""Pages in host memory, found by their keys: the tier behind the device's pages, and the way to the disk."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from .host_memory import host_memory

KEY_BYTES = 16


@dataclass(slots=True, eq=False)
class Entry:
    """A page's place in memory. While it has holds it stays there."""

    key: bytes
    namespace: str
    place: int
    holds: int = 1

    def is_of(self, scope: str, namespace: str | None) -> bool:
        """Of a namespace, or, if that is None, of one that begins with `scope`."""
        return self.namespace.startswith(scope) if namespace is None else self.namespace == namespace


class HostPool:
    """`places` pages of `place_bytes` each; those used longest ago make room for others.

    Its methods may be called from any thread. Whoever gets an entry from `reserve` writes its content, lets
    others find it with `enter`, and lets it go; or lets it go at once, having none.
    """

    def __init__(self, places: int, place_bytes: int, pinned: bool) -> None:
        self.places = places
        self.place_bytes = place_bytes
        self.memory = host_memory(places * place_bytes, pinned).view(places, place_bytes)
        self.to_write: deque[Entry] = deque()  # held until they are on disk
        self._free = list(range(places))
        self._entries: dict[bytes, Entry] = {}
        self._idle: OrderedDict[bytes, Entry] = OrderedDict()  # without holds, the next to go first
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def content(self, entry: Entry) -> memoryview:
        """Its bytes, for whoever holds it."""
        return self.memory[entry.place].numpy().data

    def reserve(self, key: bytes, namespace: str = "", patience: float = 0.0) -> Entry | None:
        """A place for a page, held; None if there is none within `patience` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free or self._idle, patience):
                return None
            if not self._free:
                _, oldest = self._idle.popitem(last=False)
                del self._entries[oldest.key]
                self._free.append(oldest.place)
            return Entry(key, namespace, self._free.pop())

    def enter(self, entry: Entry, to_write: bool) -> None:
        """It has its content: others may find it. With `to_write` it is held until it is on disk."""
        with self._changed:
            if to_write:
                entry.holds += 1
                self.to_write.append(entry)
            self._entries.setdefault(entry.key, entry)  # both threads may have been at it

    def hold(self, key: bytes) -> Entry | None:
        with self._changed:
            entry = self._entries.get(key)
            if entry is not None:
                entry.holds += 1
                self._idle.pop(key, None)
            return entry

    def let_go(self, entries: Iterable[Entry]) -> None:
        """Of pages that follow each other the last goes first: it is useless without those before it."""
        with self._changed:
            for entry in reversed(list(entries)):
                entry.holds -= 1
                if not entry.holds:
                    self._rest(entry)
            self._changed.notify_all()

    def forget(self, scope: str, namespace: str | None) -> int:
        """Gives up what `Entry.is_of` them, and says how many; what is held goes as soon as it is let go."""
        with self._changed:
            doomed = [entry for entry in self._entries.values() if entry.is_of(scope, namespace)]
            self._lose(doomed)
            return len(doomed)

    def discard(self, keys: Iterable[bytes]) -> None:
        """Gives up pages as `forget` does."""
        with self._changed:
            self._lose([self._entries[key] for key in keys if key in self._entries])

    def _lose(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            del self._entries[entry.key]
            if self._idle.pop(entry.key, None) is not None:
                self._free.append(entry.place)
        self._changed.notify_all()

    def _rest(self, entry: Entry) -> None:
        if self._entries.get(entry.key) is entry:
            self._idle[entry.key] = entry
        else:
            self._free.append(entry.place)  # nobody can find it, or nobody any more


def split_keys(keys: bytes) -> list[bytes]:
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
