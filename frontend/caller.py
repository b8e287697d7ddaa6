"""The client behind a request: its name for fairness, and whether it still waits for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request

from ..runtime.config import ServeConfig
from .tenants import SENT_KEY

BODY_BYTES = "arbora.body_bytes"  # in the scope of a request whose body was read
LARGE_BODY = 8 * 1024  # bytes; a smaller body of tools takes about 0.1 s to check, 0.3 s at worst


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


@dataclass(frozen=True)
class Caller:
    """Long work is shared fairly between callers with different names.

    `left` returns when the client has closed its connection. `scope` is the request's.
    """

    name: str = ""
    left: Callable[[], Awaitable[None]] = _never
    scope: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_large(self) -> bool:
        """True if the body, once read, is so large that checking it belongs on another thread."""
        size = self.scope.get(BODY_BYTES, 0)
        return isinstance(size, int) and size > LARGE_BODY


def caller_of(request: Request, config: ServeConfig) -> Caller:
    """Named by the API key if the server has several, else by the client's address."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    host = request.client.host if request.client is not None else ""
    name = request.scope[SENT_KEY] if len(config.api_keys) > 1 else host
    return Caller(name, left, request.scope)
