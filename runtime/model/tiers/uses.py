"""Uses of pages on the device, to be reported to the slower tiers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from .host_pool import KEY_BYTES, split_keys


class Uses:
    """Keys of consecutive pages for each use; keeps the last uses, of about `most` keys."""

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
        """Removes all uses, oldest first."""
        while self._uses:
            keys = self._uses.popleft()
            self._bytes -= len(keys)
            yield split_keys(keys)
