"""Token sequences packed as little-endian int32: compared with memcmp, and kept in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator

TOKEN_BYTES = 4
KEY_BYTES = 16  # length of a page key (page_keys.py) in bytes
_WORD_BYTES = 64
_CHUNK = 256  # average number of keys in a chunk


def common_bytes(left: bytes, right: bytes) -> int:
    """Length in bytes of the longest common prefix of `left` and `right`."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > _WORD_BYTES:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    difference = int.from_bytes(left[low:high], "little") ^ int.from_bytes(right[low:high], "little")
    return low + ((difference & -difference).bit_length() - 1) // 8


def split_keys(keys: bytes) -> list[bytes]:
    """Splits concatenated page keys."""
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


def common_tokens(left: bytes, right: bytes) -> int:
    """Number of leading tokens that two packed sequences share."""
    return common_bytes(left, right) // TOKEN_BYTES


class SortedKeys:
    """The keys of a dict in ascending order, as a list of short sorted chunks: an insertion moves few keys.

    Finding a removed key would cost more than skipping it, so it stays until a search finds it or its chunk
    is swept. Chunks are swept in turn, so at most half of the keys are stale.
    """

    __slots__ = ("_chunks", "_firsts", "_gone", "_members", "_swept_next")

    def __init__(self, members: Collection[bytes]) -> None:
        """`members` is the dict. Call `add` and `count_removed` after its changes."""
        self._members = members
        self._chunks = [sorted(members)]
        self._firsts: list[bytes] = []  # the first key of each chunk, except the first chunk
        self._swept_next = 0
        self._gone = 0  # keys removed from the dict since a chunk was last swept

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            yield from (key for key in chunk if key in self._members)

    def add(self, key: bytes) -> bytes | None:
        """Adds a key. Returns the previous key in order, if both begin with the same token."""
        index = bisect_right(self._firsts, key) if self._firsts else 0
        chunk = self._chunks[index]
        position = bisect_left(chunk, key)
        if position == len(chunk) or chunk[position] != key:
            chunk.insert(position, key)
        before = self._last_before(index, position, key[:TOKEN_BYTES])
        if len(chunk) > 2 * _CHUNK:
            self._chunks.insert(index + 1, chunk[_CHUNK:])
            self._firsts.insert(index, chunk[_CHUNK])
            del chunk[_CHUNK:]
        return before

    def count_removed(self) -> None:
        """Notes that a key was removed from the dict."""
        self._gone += 1
        if 2 * self._gone > len(self._chunks[self._swept_next]):
            self._sweep()

    def find_around(self, key: bytes) -> tuple[bytes | None, bytes | None]:
        """The keys just below `key` and from `key` on; None for one that begins with another token."""
        index = bisect_right(self._firsts, key) if self._firsts else 0
        position = bisect_left(self._chunks[index], key)
        token = key[:TOKEN_BYTES]
        after = self._first_from(index, position, token)
        return self._last_before(index, position, token), after

    def _last_before(self, index: int, position: int, token: bytes) -> bytes | None:
        chunk = self._chunks[index]
        while True:
            if position:
                position -= 1
                key = chunk[position]
                if not key.startswith(token):
                    return None
                if key in self._members:
                    return key
                del chunk[position]
            elif index:
                index -= 1
                chunk = self._chunks[index]
                position = len(chunk)
            else:
                return None

    def _first_from(self, index: int, position: int, token: bytes) -> bytes | None:
        chunk = self._chunks[index]
        while True:
            if position < len(chunk):
                key = chunk[position]
                if not key.startswith(token):
                    return None
                if key in self._members:
                    return key
                del chunk[position]
            elif index < len(self._firsts):
                index += 1
                chunk = self._chunks[index]
                position = 0
            else:
                return None

    def _sweep(self) -> None:
        index, self._gone = self._swept_next, 0
        chunk = self._chunks[index]
        chunk[:] = [key for key in chunk if key in self._members]
        if chunk or not self._firsts:
            index += 1
        else:
            del self._chunks[index], self._firsts[max(index - 1, 0)]
        self._swept_next = index % len(self._chunks)
