"""How much memory all bodies take together while they are received and decoded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ...runtime.errors import RequestError

MOST_BYTES = 512 * 1024 * 1024
FREE_BYTES = 64 * 1024  # of each body, which are not counted: small requests are never refused


class BodyRoom:
    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._taken = 0

    @contextlib.contextmanager
    def share(self) -> Iterator[Share]:
        """The part of one body, given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self._taken -= share.taken

    def take(self, size: int) -> None:
        """Raises a 503 `RequestError` where this is too much."""
        if self._taken + size > self._most:
            raise RequestError(
                "The server is receiving too many large requests at the moment. Try again later.",
                status=503,
                code="too_many_large_requests",
            )
        self._taken += size


class Share:
    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._size = 0
        self.taken = 0

    def add(self, size: int) -> None:
        """More of the body has come. Raises `RequestError`."""
        self._size += size
        counted = max(0, self._size - FREE_BYTES) - self.taken
        if counted:
            self._room.take(counted)
            self.taken += counted
