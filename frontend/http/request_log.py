"""Logs one line for each HTTP request when it ends: sizes, times and outcome, but never texts or keys."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .metrics import RequestTimer
from .tenants import SENT_KEY

TIMER = "arbora.timer"
"""in the scope of a request that generates: its `RequestTimer`"""
ERROR_CODE = "arbora.error_code"
"""in the scope of a refused request: its error's code"""
LONGEST_PATH = 100  # characters; a path may be as long as a request line
log = logging.getLogger(__name__)


class RequestLog:
    """An ASGI application that calls another one for each request and logs the outcome."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        status, request_id = 0, ""

        async def watched(message: Message) -> None:
            nonlocal status, request_id
            if message["type"] == "http.response.start":
                status = message["status"]
                request_id = dict(message.get("headers", ())).get(b"x-request-id", b"").decode("latin-1")
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            seconds = time.monotonic() - started
            log.info("%s", _line(scope, status, request_id, seconds))


def _line(scope: Scope, status: int, request_id: str, seconds: float) -> str:
    """`status` is 0 if the client disconnected before the response began."""
    path = ascii(scope["path"][:LONGEST_PATH])[1:-1]
    parts = [scope["method"], path, str(status or "no-status")]
    if request_id:
        parts.append(request_id)
    if key := scope.get(SENT_KEY):
        parts.append(f"key={key.name}")
    timer = scope.get(TIMER)
    if isinstance(timer, RequestTimer):
        parts += timer.log_fields()
    if code := scope.get(ERROR_CODE):
        parts.append(f"code={code}")
    return " ".join([*parts, f"seconds={seconds:.3f}"])
