"""Limits the memory of bodies that are being received and decoded, in total and for each client."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from ...runtime.errors import RequestError

MOST_BYTES = 512 * 1024 * 1024
FREE_BYTES = 64 * 1024  # of each body, which are not counted, so small requests are never refused


class BodyMemory:
    """Counts the bytes of bodies. One client may have at most half of the limit."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._most_of_one = most // 2
        self._taken = 0
        self._taken_by: Counter[str] = Counter()

    @contextlib.contextmanager
    def share(self, client: str) -> Iterator[Share]:
        """Counts the bytes of one body, and frees them at the end."""
        share = Share(self, client)
        try:
            yield share
        finally:
            self._taken -= share.taken
            self._taken_by[client] -= share.taken
            if not self._taken_by[client]:
                del self._taken_by[client]

    def take(self, size: int, client: str) -> None:
        """Raises a 503 `RequestError` if these bytes exceed a limit."""
        if self._taken + size > self._most:
            raise _too_many("The server is receiving too many large requests at the moment.")
        if self._taken_by[client] + size > self._most_of_one:
            raise _too_many("The server is receiving too many large requests from this client at the moment.")
        self._taken += size
        self._taken_by[client] += size


class Share:
    def __init__(self, memory: BodyMemory, client: str) -> None:
        self._memory = memory
        self._client = client
        self._size = 0
        self.taken = 0

    def add(self, size: int) -> None:
        """Counts more bytes of the body. Raises `RequestError`."""
        self._size += size
        counted = max(0, self._size - FREE_BYTES) - self.taken
        if counted:
            self._memory.take(counted, self._client)
            self.taken += counted


def _too_many(problem: str) -> RequestError:
    return RequestError(f"{problem} Try again later.", status=503, code="too_many_large_requests")
