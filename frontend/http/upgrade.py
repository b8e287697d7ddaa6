"""The connection of a request that asks to become a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

UPGRADE = "arbora.upgrade"
"""in the scope of a request that asks for a WebSocket: its `Upgrade`"""


@dataclass(frozen=True)
class Upgrade:
    """After an answer with the status 101, the request's body is every byte that the client sends, and the
    answer's body is sent without HTTP's framing. The connection closes with the answer.

    `ending` is set when the connection must close: the server stops, or a new connection needs its place,
    which only happens after `set_busy(False)`.
    """

    ending: asyncio.Event
    set_busy: Callable[[bool], None]
