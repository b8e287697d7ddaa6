"""A sorted collection whose changes stay cheap when it is large."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

_CHUNK = 512

Key = TypeVar("Key", bytes, tuple[int, int])


class SortedKeys(Generic[Key]):
    """Different keys in ascending order: a list of short sorted lists, so that no long one is ever moved."""

    __slots__ = ("_chunks", "_firsts")

    def __init__(self) -> None:
        self._chunks: list[list[Key]] = [[]]  # none is empty, but for the only one
        self._firsts: list[Key] = []  # of each chunk but the first

    def __iter__(self) -> Iterator[Key]:
        for chunk in self._chunks:
            yield from chunk

    def add(self, key: Key) -> None:
        index = bisect_right(self._firsts, key)
        chunk = self._chunks[index]
        insort(chunk, key)
        if len(chunk) > 2 * _CHUNK:
            self._chunks.insert(index + 1, chunk[_CHUNK:])
            self._firsts.insert(index, chunk[_CHUNK])
            del chunk[_CHUNK:]

    def remove(self, key: Key) -> None:
        index = bisect_right(self._firsts, key)
        chunk = self._chunks[index]
        del chunk[bisect_left(chunk, key)]
        if not chunk and self._firsts:
            del self._chunks[index]
            del self._firsts[max(index - 1, 0)]

    def around(self, key: Key) -> tuple[Key | None, Key | None]:
        """The last key below `key`, and the first that is not below it."""
        index = bisect_right(self._firsts, key)
        chunk = self._chunks[index]
        position = bisect_left(chunk, key)
        if position:
            before = chunk[position - 1]
        else:
            before = self._chunks[index - 1][-1] if index else None
        if position < len(chunk):
            return before, chunk[position]
        return before, self._chunks[index + 1][0] if index + 1 < len(self._chunks) else None
