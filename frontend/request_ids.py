"""Answers repeat the client's `x-request-id`, so that its log and the server's can be compared."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = b"x-request-id"
MOST_CHARACTERS = 128
_UNUSUAL = re.compile(rb"[^A-Za-z0-9._:/+=@-]")


class RequestIds:
    """An ASGI application around another one. The client's id replaces the server's in the answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = cleaned(dict(scope["headers"]).get(REQUEST_ID, b""))

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [header for header in message.get("headers", ()) if header[0] != REQUEST_ID]
                message = {**message, "headers": [*others, (REQUEST_ID, sent)]}
            await send(message)

        await self._app(scope, receive, with_id if sent else send)


def cleaned(sent: bytes) -> bytes:
    """The id without characters that have a meaning in a terminal, a log or a page."""
    return _UNUSUAL.sub(b"", sent[: 4 * MOST_CHARACTERS])[:MOST_CHARACTERS]
