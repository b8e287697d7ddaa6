"""CORS: lets the web pages of chosen origins send requests and read the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ANY_ORIGIN = "*"
METHODS = "GET, POST, DELETE"
READABLE = "x-request-id, retry-after"
"""headers of an answer that a page may read, besides those that it always may"""
PREFLIGHT_SECONDS = "600"


class AllowedOrigins:
    """The origins of `--allowed-origin`; with `*`, all of them."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)
        self._all = ANY_ORIGIN in self._origins

    def __bool__(self) -> bool:
        return bool(self._origins)

    def has(self, origin: str) -> bool:
        return bool(origin) and (self._all or origin in self._origins)

    def headers(self, origin: str) -> Mapping[str, str]:
        """The CORS headers of an answer to a page of `origin`, which is empty for other clients.

        Credentials of the browser, such as cookies, are never allowed: a key is sent by the page itself.
        """
        if not self._origins:
            return {}
        vary = {} if self._all else {"vary": "Origin"}
        if not self.has(origin):
            return vary
        allowed = ANY_ORIGIN if self._all else origin
        return {
            "access-control-allow-origin": allowed,
            "access-control-expose-headers": READABLE,
            **vary,
        }


class Cors:
    """An ASGI application that answers preflight requests, and adds CORS headers to another one's answers."""

    def __init__(self, app: ASGIApp, origins: AllowedOrigins) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        origin = sent.get("origin", "")
        added = self._origins.headers(origin)
        is_preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in sent
        if is_preflight and self._origins.has(origin):
            await Response(status_code=204, headers={**added, **_permissions(sent)})(scope, receive, send)
            return
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in added.items()]

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *encoded]}
            await send(message)

        await self._app(scope, receive, with_headers)


def _permissions(sent: Mapping[str, str]) -> dict[str, str]:
    """What a preflight request asks for. All headers are allowed: clients' libraries send their own."""
    permissions = {"access-control-allow-methods": METHODS, "access-control-max-age": PREFLIGHT_SECONDS}
    if asked := sent.get("access-control-request-headers"):
        permissions["access-control-allow-headers"] = asked
    if sent.get("access-control-request-private-network") == "true":
        permissions["access-control-allow-private-network"] = "true"
    return permissions
