"""The outcome of an HTTP request, for logs and traces: sizes, times and status, but no texts and no keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...runtime.api_keys import ApiKey
from .metrics import RequestTimer, Work
from .tenants import SENT_KEY

TIMER = "arbora.timer"
"""in the scope of a request that generates: its `RequestTimer`"""
ERROR_CODE = "arbora.error_code"
"""in the scope of a refused request: its error's code"""
IS_CHAT = "arbora.is_chat"
"""in the scope of a request to a path that takes either a text or a chat: whether this one is a chat"""


@dataclass(frozen=True)
class Outcome:
    """`status` is 0 if the client disconnected before the response began. `ended_at` is in seconds since
    1970, `seconds` how long the request took. `key` is the key's name. `work` is None for a request that
    generates nothing. `is_chat` is None if only the path says whether the request is a chat.
    """

    method: str
    path: str
    id: str
    status: int
    key: str | None
    code: str | None
    ended_at: float
    seconds: float
    work: Work | None
    is_chat: bool | None


async def with_outcome(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, told: Callable[[Outcome], None]
) -> None:
    """Calls the application, then `told` with the outcome of the request."""
    started = time.monotonic()
    status, request_id = 0, ""

    async def watched(message: Message) -> None:
        nonlocal status, request_id
        if message["type"] == "http.response.start":
            status = message["status"]
            request_id = dict(message.get("headers", ())).get(b"x-request-id", b"").decode("latin-1")
        await send(message)

    try:
        await app(scope, receive, watched)
    finally:
        key: ApiKey | None = scope.get(SENT_KEY)
        timer: RequestTimer | None = scope.get(TIMER)
        work = None if timer is None else timer.work()
        told(
            Outcome(
                method=scope["method"],
                path=scope["path"],
                id=request_id,
                status=status,
                key=None if key is None else key.name,
                code=scope.get(ERROR_CODE) or (None if work is None else work.code),
                ended_at=time.time(),
                seconds=time.monotonic() - started,
                work=work,
                is_chat=scope.get(IS_CHAT),
            )
        )
