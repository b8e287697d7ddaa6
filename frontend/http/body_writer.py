"""Writes parts of a streamed answer's body at once, so that a token needs no task."""

from __future__ import annotations

from typing import Protocol

BODY_WRITER = "arbora.body_writer"
"""in the scope of a request whose connection can do this: its `BodyWriter`"""


class BodyWriter(Protocol):
    """Writes what ASGI's `send` would write for a part that more parts follow. The headers must have been
    sent with `send`, and so is the last part."""

    @property
    def is_ready(self) -> bool:
        """False while the client reads too slowly; then `send` waits."""

    def write(self, part: bytes) -> None: ...
