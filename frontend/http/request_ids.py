"""The ids that answers carry in their headers.

They repeat the client's `x-request-id`, so that its log and the server's can be compared. Without one an
answer has the id of its reply, or a new id if it has no reply. Some faces have a header of their own for it.
"""

from __future__ import annotations

import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .faces import ANSWER_ID, Faces

REQUEST_ID = b"x-request-id"
MOST_CHARACTERS = 128
_UNUSUAL = re.compile(rb"[^A-Za-z0-9._:/+=@-]")


class RequestIds:
    """An ASGI application around another one. The client's id replaces the server's in the answers."""

    def __init__(self, app: ASGIApp, faces: Faces) -> None:
        self._app = app
        self._faces = faces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = cleaned(dict(scope["headers"]).get(REQUEST_ID, b""))
        ids = {REQUEST_ID: sent} if sent else {}
        name = self._faces.of(scope["path"], scope["headers"]).id_header
        if name:
            ids[name] = sent or new_id()
            scope[ANSWER_ID] = ids[name].decode()

        async def with_ids(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                has_id = REQUEST_ID in ids or REQUEST_ID in dict(headers)
                added = ids if has_id else {REQUEST_ID: ids.get(name) or new_id(), **ids}
                others = [header for header in headers if header[0] not in ids]
                message = {**message, "headers": [*others, *added.items()]}
            await send(message)

        await self._app(scope, receive, with_ids)


def new_id() -> bytes:
    return b"req_" + secrets.token_hex(12).encode()


def cleaned(sent: bytes) -> bytes:
    """The id without characters that have a meaning in a terminal, a log or a page."""
    return _UNUSUAL.sub(b"", sent[: 4 * MOST_CHARACTERS])[:MOST_CHARACTERS]
