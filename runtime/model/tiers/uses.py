"""What was used on the device, which the slower tiers are to learn of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from .host_pool import KEY_BYTES, split_keys


class Uses:
    """For each use the keys of pages that follow each other; of about `most` keys, the last ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._uses: deque[bytes] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._uses)

    def add(self, keys: bytes) -> None:
        self._uses.append(keys)
        self._bytes += len(keys)
        while len(self._uses) > 1 and self._bytes > self._most * KEY_BYTES:
            self._bytes -= len(self._uses.popleft())

    def take(self) -> Iterator[list[bytes]]:
        """All of them, the oldest first."""
        while self._uses:
            keys = self._uses.popleft()
            self._bytes -= len(keys)
            yield split_keys(keys)
