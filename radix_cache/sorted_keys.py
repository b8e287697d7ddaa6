"""A sorted collection whose changes stay cheap when it is large."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

_CHUNK = 512


class SortedKeys:
    """Different keys in ascending order: a list of short sorted lists, so that no long one is ever moved."""

    __slots__ = ("_chunks", "_firsts")

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._chunks = [sorted(keys)]  # none is empty, but for the only one
        self._firsts: list[bytes] = []  # of each chunk but the first

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            yield from chunk

    def add(self, key: bytes) -> bytes | None:
        """Returns the key just before it."""
        index = bisect_right(self._firsts, key) if self._firsts else 0
        chunk = self._chunks[index]
        position = bisect_left(chunk, key)
        before = self._last_before(index, position)
        chunk.insert(position, key)
        if len(chunk) > 2 * _CHUNK:
            self._chunks.insert(index + 1, chunk[_CHUNK:])
            self._firsts.insert(index, chunk[_CHUNK])
            del chunk[_CHUNK:]
        return before

    def remove(self, key: bytes) -> None:
        index = bisect_right(self._firsts, key) if self._firsts else 0
        chunk = self._chunks[index]
        del chunk[bisect_left(chunk, key)]
        if not chunk and self._firsts:
            del self._chunks[index]
            del self._firsts[max(index - 1, 0)]

    def around(self, key: bytes) -> tuple[bytes | None, bytes | None]:
        """The last key below `key`, and the first that is not below it."""
        index = bisect_right(self._firsts, key) if self._firsts else 0
        position = bisect_left(self._chunks[index], key)
        return self._last_before(index, position), self._first_from(index, position)

    def _last_before(self, index: int, position: int) -> bytes | None:
        if position:
            return self._chunks[index][position - 1]
        return self._chunks[index - 1][-1] if index else None

    def _first_from(self, index: int, position: int) -> bytes | None:
        if position < len(self._chunks[index]):
            return self._chunks[index][position]
        return self._chunks[index + 1][0] if index + 1 < len(self._chunks) else None
