"""The outcome of an HTTP request, for logs and traces: sizes, times and status, but no texts and no keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...runtime.api_keys import ApiKey
from ...runtime.errors import RequestError
from ..core.replica.model_use import ModelHold
from .metrics import RequestTimer
from .server.exchange import REFUSAL
from .tenants import SENT_KEY

TIMER = "arbora.timer"
"""Key in the ASGI scope of a request that generates: its `RequestTimer`."""
ERROR = "arbora.error"
"""Key in the ASGI scope of a refused request: its `RequestError`."""
MODEL_HOLD = "arbora.model_hold"
"""Key in the ASGI scope of a request that keeps its model loaded: its `ModelHold`."""
MODEL_NAME = "arbora.model_name"
"""Key in the ASGI scope: the model that the request's body names, None if it names none."""
CLIENT_CLOSED_REQUEST = 499
IS_CHAT = "arbora.is_chat"
"""Key in the ASGI scope, on paths that take either a text or a chat: whether the request is a chat."""


@dataclass(frozen=True)
class Outcome:
    """How a request ended. `status` is 0 if no response began. `ended_at` is in seconds since 1970, `seconds`
    how long the request took. `key` is the key's name, `model` the model that the body names. `timer` is None
    for a request that generates nothing. `is_chat` is None if only the path says whether the request is a
    chat."""

    method: str
    path: str
    id: str
    status: int
    key: str | None
    error: RequestError | None
    ended_at: float
    seconds: float
    timer: RequestTimer | None = None
    is_chat: bool | None = None
    model: str | None = None

    @property
    def code(self) -> str | None:
        return None if self.error is None else self.error.code

    @property
    def is_abandoned(self) -> bool:
        """Whether the client disconnected before the answer was complete."""
        return self.status == CLIENT_CLOSED_REQUEST or (self.timer is not None and self.timer.is_aborted)


Listener: TypeAlias = Callable[[Scope, Outcome], None]
"""A function that gets each request that has ended, with its outcome."""


def observe(app: ASGIApp, listeners: Sequence[Listener]) -> ASGIApp:
    """Wraps the application so that the listeners get each request that has ended."""
    return OutcomeMiddleware(app, listeners) if listeners else app


class OutcomeMiddleware:
    """Calls the application, then the listeners with the outcome of the request. Then the request's model may
    be unloaded."""

    def __init__(self, app: ASGIApp, listeners: Sequence[Listener]) -> None:
        self._app = app
        self._listeners = listeners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        status, request_id = 0, ""

        async def note_start(message: Message) -> None:
            nonlocal status, request_id
            if message["type"] == "http.response.start":
                status = message["status"]
                request_id = dict(message.get("headers", ())).get(b"x-request-id", b"").decode("latin-1")
            await send(message)

        try:
            await self._app(scope, receive, note_start)
        finally:
            outcome = _outcome(scope, status, request_id, time.monotonic() - started)
            for listener in self._listeners:
                listener(scope, outcome)
            end_hold(scope)


def end_hold(scope: Scope) -> None:
    """Ends the hold of a request on its model, if it has one."""
    hold: ModelHold | None = scope.get(MODEL_HOLD)
    if hold is not None:
        hold.end()


def _outcome(scope: Scope, status: int, request_id: str, seconds: float) -> Outcome:
    key: ApiKey | None = scope.get(SENT_KEY)
    timer: RequestTimer | None = scope.get(TIMER)
    refusal: RequestError | None = scope.get(REFUSAL)
    return Outcome(
        method=scope["method"],
        path=scope["path"],
        id=request_id,
        status=status if refusal is None else refusal.status,
        key=None if key is None else key.name,
        error=refusal or scope.get(ERROR) or (None if timer is None else timer.error),
        ended_at=time.time(),
        seconds=seconds,
        timer=timer,
        is_chat=scope.get(IS_CHAT),
        model=scope.get(MODEL_NAME),
    )
