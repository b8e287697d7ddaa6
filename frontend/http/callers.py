"""The caller behind an HTTP request."""

from __future__ import annotations

from starlette.requests import Request

from ...runtime.config import ServeConfig
from ..work.caller import Caller
from .tenants import SENT_KEY

BODY_BYTES = "arbora.body_bytes"  # in the scope of a request whose body was read


def caller_of(request: Request, config: ServeConfig) -> Caller:
    """Named by the API key if the server has several, else by the client's address."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    def body_bytes() -> int:
        size: int = request.scope.get(BODY_BYTES, 0)
        return size

    host = request.client.host if request.client is not None else ""
    name = request.scope[SENT_KEY] if len(config.api_keys) > 1 else host
    return Caller(name, left, body_bytes)
