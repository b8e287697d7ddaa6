"""Decides which requests need an API key, and finds the key that a request came with."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from ..runtime.api_keys import ApiKey
from ..runtime.errors import RequestError
from .http.faces import Faces
from .http.tenants import SENT_KEY
from .keys.key_ring import KeyRing

METRICS_PATH = "/metrics"
OPEN_PATHS = frozenset(("/health", "/health/live", "/health/ready", "/ping", "/version", METRICS_PATH))


class Guard:
    """An ASGI application that calls another one for requests with a known key, and for `open_paths`.

    A key is sent as `Authorization: Bearer KEY` (OpenAI) or `x-api-key: KEY` (Anthropic). The scope's
    `SENT_KEY` has the known key for the inner application.
    """

    def __init__(self, app: ASGIApp, faces: Faces, keys: KeyRing, open_paths: Collection[str]) -> None:
        self._app = app
        self._faces = faces
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = self._key(scope)
        if scope["path"] in self._open_paths or key is not None:
            scope[SENT_KEY] = key
            await self._app(scope, receive, send)
            return
        error = RequestError(
            "A valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
            status=401,
            code="invalid_api_key",
        )
        await self._faces.error_response(scope, error)(scope, receive, send)

    def _key(self, scope: Scope) -> ApiKey | None:
        headers = dict(scope["headers"])
        scheme, _, sent = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            sent = headers.get(b"x-api-key", b"")
        return self._keys.find(sent.strip().decode("utf-8", "replace"))
