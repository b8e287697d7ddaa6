"""Decides which requests need an API key, and finds the key that a request came with."""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from ...runtime.errors import RequestError
from .faces import Faces, Headers
from .keys.key_ring import KeyRing
from .tenants import SENT_KEY

METRICS_PATH = "/metrics"
OPEN_PATHS = frozenset(("/health", "/health/live", "/health/ready", "/ping", "/version", METRICS_PATH))
_NO_KEY = RequestError(
    "A valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
    status=401,
    code="invalid_api_key",
)
_TWO_KEYS = RequestError(
    "The request has different API keys in its headers authorization and x-api-key: send only one.",
    status=401,
    code="contradictory_api_keys",
)


class Guard:
    """An ASGI application that calls another one for requests with a known key, and for `open_paths`.

    A key is sent as `Authorization: Bearer KEY` (OpenAI) or `x-api-key: KEY` (Anthropic), or as both if they
    are the same. The scope's `SENT_KEY` has the known key for the inner application.
    """

    def __init__(self, app: ASGIApp, faces: Faces, keys: KeyRing, open_paths: Collection[str]) -> None:
        self._app = app
        self._faces = faces
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = _sent_keys(scope["headers"])
        key = self._keys.find(*sent) if len(sent) == 1 else None
        if scope["path"] in self._open_paths or key is not None:
            scope[SENT_KEY] = key
            await self._app(scope, receive, send)
            return
        error = _TWO_KEYS if len(sent) > 1 else _NO_KEY
        await self._faces.error_response(scope, error)(scope, receive, send)


def _sent_keys(headers: Headers) -> set[str]:
    """The different keys that a request was sent with. Other schemes than Bearer, such as a proxy's Basic, do
    not count."""
    found: set[bytes] = set()
    for name, value in headers:
        scheme, _, credentials = value.partition(b" ")
        if name == b"x-api-key":
            found.add(value.strip())
        elif name == b"authorization" and scheme.lower() == b"bearer":
            found.add(credentials.strip())
    return {key.decode("utf-8", "replace") for key in found if key}
