"""How much memory the bodies of requests may take together while they arrive and are decoded."""

from __future__ import annotations

from types import TracebackType

from ...runtime.errors import RequestError
from ..caller import LARGE_BODY

MAX_HELD_BYTES = 512 * 1024 * 1024


class BodyRoom:
    """Counts the bytes of all bodies. Small bodies are always let in."""

    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self.most = most
        self.held = 0


class BodyShare:
    """The bytes of one body, which are given back at the end of a `with` block."""

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self.size = 0

    def grow(self, size: int) -> None:
        """Raises a 503 `RequestError` for a large body when there is no room."""
        room = self._room
        self.size += size
        room.held += size
        if self.size > LARGE_BODY and room.held > room.most:
            raise RequestError(
                f"The server is reading other large bodies, of which it holds {room.most} bytes at most: "
                "try again in a moment.",
                status=503,
                code="bodies_too_large",
            )

    def __enter__(self) -> BodyShare:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._room.held -= self.size
