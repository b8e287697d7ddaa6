"""The APIs of a server. Each has its own paths, and its own form of errors on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from ...runtime.errors import RequestError
from .http_service import HttpService
from .request_log import ERROR_CODE

RETRY_AFTER_SECONDS = 5
MAX_MESSAGE = 2048  # characters
MAX_PARAM = 256
Handler: TypeAlias = Callable[[HttpService, Request], Awaitable[Response]]


@dataclass(frozen=True)
class Face:
    """One API. `error_json` is the form of its errors, on the paths `prefixes` and below them."""

    routes: Callable[[HttpService], Sequence[Route]]
    error_json: Callable[[RequestError], bytes]
    prefixes: tuple[str, ...] = ()

    def has(self, path: str) -> bool:
        return any(path == prefix or path.startswith(f"{prefix}/") for prefix in self.prefixes)


@dataclass(frozen=True)
class Faces:
    """All APIs of a server. `default` has the form of the errors on all other paths."""

    default: Face
    others: Sequence[Face] = ()

    def routes(self, http: HttpService) -> list[Route]:
        return [route for face in (self.default, *self.others) for route in face.routes(http)]

    def error_json(self, path: str, error: RequestError) -> bytes:
        face = next((face for face in self.others if face.has(path)), self.default)
        return face.error_json(with_short_texts(error))

    def error_response(
        self, scope: Scope, error: RequestError, headers: dict[str, str] | None = None
    ) -> Response:
        """The answer to a refused request, in the form of its path. The log gets the error's code."""
        scope[ERROR_CODE] = error.code
        body = self.error_json(scope["path"], error)
        return Response(body, error.status, {**(headers or {}), **error_headers(error)}, "application/json")


def with_short_texts(error: RequestError) -> RequestError:
    """The error with its texts shortened: they may quote a request, up to its whole body."""
    return RequestError(
        shortened(error.message, MAX_MESSAGE),
        status=error.status,
        param=None if error.param is None else shortened(error.param, MAX_PARAM),
        code=error.code,
        retry_after=error.retry_after,
    )


def shortened(text: str, most: int) -> str:
    """The text, or the beginning and end of a text of more than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 2 :]}"


def error_headers(error: RequestError) -> dict[str, str]:
    """The header that says when to try again (429 and 503) or how to authenticate (401)."""
    if error.status in (429, 503):
        return {"retry-after": str(error.retry_after or RETRY_AFTER_SECONDS)}
    return {"www-authenticate": "Bearer"} if error.status == 401 else {}


def route(method: str, path: str, http: HttpService, handler: Handler) -> Route:
    async def handle(request: Request) -> Response:
        return await handler(http, request)

    return Route(path, handle, methods=[method])
