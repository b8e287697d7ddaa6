"""Pages in host memory, by key: the first tier below the device, and the buffer of the tiers below it."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from .host_memory import HostMemory

KEY_BYTES = 16


@dataclass(slots=True, eq=False)
class Entry:
    """A page in host memory."""

    key: bytes
    namespace: str
    place: int  # index of the page in the memory
    holds: int = 1  # number of users; a held page is not evicted

    def matches(self, scope: str, namespace: str | None) -> bool:
        """Whether the page is of `namespace`, or, if that is None, of one that begins with `scope`."""
        return self.namespace.startswith(scope) if namespace is None else self.namespace == namespace


class HostPool:
    """Holds pages of `place_bytes` bytes each, and evicts the least recently used ones.

    Its methods may be called from any thread. The caller of `reserve` writes the entry's content, publishes
    it with `enter`, and releases it; without a content it only releases it.
    """

    def __init__(self, memory: HostMemory, place_bytes: int) -> None:
        """Waits for the memory's first bytes. Raises RuntimeError if they can't be pinned."""
        self.host_memory = memory
        self.places = len(memory.tensor) // place_bytes
        self.place_bytes = place_bytes
        self.memory = memory.tensor[: self.places * place_bytes].view(self.places, place_bytes)
        """uint8 [places, place_bytes]: the bytes of each page"""
        self.to_write: deque[Entry] = deque()  # held until they are written to the lower tiers
        self._free: list[int] = []
        self._entries: dict[bytes, Entry] = {}
        self._idle: OrderedDict[bytes, Entry] = OrderedDict()  # entries without holds, oldest use first
        self._usable = 0  # number of usable places
        self._changed = threading.Condition()
        memory.offer(self._grow)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def content(self, entry: Entry) -> memoryview:
        """The bytes of an entry that the caller holds."""
        return self.memory[entry.place].numpy().data

    def has_room(self, count: int) -> bool:
        """Whether `count` places are free, or would be after the eviction of pages without holds."""
        with self._changed:
            return len(self._free) + len(self._idle) >= count

    def reserve(self, key: bytes, namespace: str = "", timeout: float = 0.0) -> Entry | None:
        """Reserves a held entry for a page; None if no place is free within `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._free or self._idle, timeout):
                return None
            if not self._free:
                _, oldest = self._idle.popitem(last=False)
                del self._entries[oldest.key]
                self._free.append(oldest.place)
            return Entry(key, namespace, self._free.pop())

    def enter(self, entry: Entry, to_write: bool) -> None:
        """Publishes an entry with its content. With `to_write` it is held until it is written."""
        with self._changed:
            if to_write:
                entry.holds += 1
                self.to_write.append(entry)
            self._entries.setdefault(entry.key, entry)  # the other thread may have entered the page too

    def hold(self, key: bytes) -> Entry | None:
        with self._changed:
            entry = self._entries.get(key)
            if entry is not None:
                entry.holds += 1
                self._idle.pop(key, None)
            return entry

    def release(self, entries: Iterable[Entry]) -> None:
        """Releases consecutive pages. The last one is evicted first, as it is useless without the others."""
        with self._changed:
            for entry in reversed(list(entries)):
                entry.holds -= 1
                if not entry.holds:
                    self._rest(entry)
            self._changed.notify_all()

    def forget(self, scope: str, namespace: str | None) -> int:
        """Removes matching pages and returns their number; held ones are freed when they are released."""
        with self._changed:
            doomed = [entry for entry in self._entries.values() if entry.matches(scope, namespace)]
            self._remove(doomed)
            return len(doomed)

    def discard(self, keys: Iterable[bytes]) -> None:
        """Removes pages as `forget` does."""
        with self._changed:
            self._remove([self._entries[key] for key in keys if key in self._entries])

    def _grow(self, usable: int) -> None:
        """Notes that `usable` bytes of the memory can be used."""
        with self._changed:
            places = usable // self.place_bytes
            self._free += range(self._usable, places)
            self._usable = places
            self._changed.notify_all()

    def _remove(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            del self._entries[entry.key]
            if self._idle.pop(entry.key, None) is not None:
                self._free.append(entry.place)
        self._changed.notify_all()

    def _rest(self, entry: Entry) -> None:
        if self._entries.get(entry.key) is entry:
            self._idle[entry.key] = entry
        else:
            self._free.append(entry.place)  # its page was removed, or never entered


def list_pieces(key: bytes, count: int) -> list[bytes]:
    """The keys of the `count` pieces of a state. The first one is the state's key."""
    first = int.from_bytes(key, "big")
    return [((first + number) % (1 << 8 * KEY_BYTES)).to_bytes(KEY_BYTES, "big") for number in range(count)]


def split_keys(keys: bytes) -> list[bytes]:
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
