"""Counts the answers to each API key, and adds headers that say how much of its limits is left."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...runtime.api_keys import Allowance, Allowances, ApiKey
from .faces import ALLOWANCES, Faces, Headers
from .metrics import Metrics
from .outcome import TIMER
from .tenants import SENT_KEY


class KeyedAnswers:
    """An ASGI application around another one, whose answers get the headers if the scope has `ALLOWANCES`."""

    def __init__(self, app: ASGIApp, faces: Faces, metrics: Metrics) -> None:
        self._app = app
        self._faces = faces
        self._answers = metrics.key_answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key: ApiKey | None = scope.get(SENT_KEY)

        async def with_headers(message: Message) -> None:
            if message["type"] != "http.response.start":
                await send(message)
                return
            if key is not None and TIMER in scope:
                self._answers.labels(key.name, message["status"]).inc()
            allowances = scope.get(ALLOWANCES)
            if allowances is not None:
                face = self._faces.of(scope["path"], scope["headers"])
                added = (face.allowance_headers or openai_headers)(allowances)
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self._app(scope, receive, with_headers)


def openai_headers(allowances: Allowances) -> Headers:
    for kind, allowance in by_kind(allowances):
        yield b"x-ratelimit-limit-" + kind, b"%d" % allowance.limit
        yield b"x-ratelimit-remaining-" + kind, b"%d" % allowance.left
        yield b"x-ratelimit-reset-" + kind, _duration(allowance.full_in_s).encode()


def by_kind(allowances: Allowances) -> Iterator[tuple[bytes, Allowance]]:
    """The limits that the key has, by their names in headers."""
    if allowances.requests is not None:
        yield b"requests", allowances.requests
    if allowances.tokens is not None:
        yield b"tokens", allowances.tokens


def _duration(seconds: float) -> str:
    """A time as OpenAI writes it: 120ms, 8.5s, 6m0s."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    return f"{int(seconds) // 60}m{int(seconds) % 60}s"
