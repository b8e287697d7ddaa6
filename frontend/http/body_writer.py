"""Writes parts of a streamed answer's body at once, so that a token needs no task."""

from __future__ import annotations

from typing import TypeAlias

from ..core.attempts import PartWriter

BODY_WRITER = "arbora.body_writer"
"""the key of the `BodyWriter` in the ASGI scope of a request; the scope of a WebSocket has none"""

BodyWriter: TypeAlias = PartWriter[bytes]
"""Writes a part as ASGI's `send` does. `send` must have sent the headers before, and it sends the last part.
The writer is not ready while the client reads too slowly: then `send` waits."""
