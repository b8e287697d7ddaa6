"""The caller of long work: its name for fairness, and whether its client is still connected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

LARGE_BODY = 8 * 1024  # bytes; a smaller body's fields are checked on the event loop, within about 0.02 s
MESSAGE_BYTES = 256  # bytes whose check takes as long as rendering one message in several forms


class ClientGoneError(Exception):
    """The client has disconnected, so an answer would not be read."""


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


def _nothing() -> int:
    return 0


@dataclass(frozen=True)
class Caller:
    """Long work is shared fairly between callers with different names.

    `left` returns when the client has disconnected. `body_bytes` returns the size of the body,
    once it is read.
    """

    name: str = ""
    left: Callable[[], Awaitable[None]] = _never
    body_bytes: Callable[[], int] = _nothing

    def with_messages(self, count: int) -> Caller:
        """The caller for work on a conversation, in which many short messages count as a large body."""
        return replace(self, body_bytes=lambda: max(self.body_bytes(), count * MESSAGE_BYTES))

    @property
    def is_large(self) -> bool:
        """True if the body is so large that checking it belongs on another thread."""
        return self.body_bytes() > LARGE_BODY
