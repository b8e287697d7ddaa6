"""The APIs of a server. Each has its own paths, and its own form of errors on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ...runtime.api_keys import Allowances
from ...runtime.errors import RequestError
from .http_service import HttpService
from .operation import DescribedRoute, Operation
from .outcome import ERROR_CODE

RETRY_AFTER_SECONDS = 5
MAX_MESSAGE = 2048  # characters
MAX_PARAM = 256
ANSWER_ID = "arbora.answer_id"
"""in the scope of a request: the id of its answer, if its face has an `id_header`"""
ALLOWANCES = "arbora.allowances"
"""in the scope of a request whose key has limits: its `Allowances`"""
Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
Handler: TypeAlias = Callable[[HttpService, Request], Awaitable[Response]]
Applications: TypeAlias = Mapping[str, ASGIApp]
"""by their paths"""


@dataclass(frozen=True)
class Face:
    """One API. Requests on the paths `prefixes` and below them are for this face.

    On the paths of `shared`, which the default face has too, only requests with the header `header` are for
    it. `error_json` is the form of errors; it takes the request's id, which is empty if the request has none.
    `statuses` maps statuses of errors to those of this API. Answers carry their id in the header `id_header`,
    and what is left to their key in the `allowance_headers`, by default in OpenAI's. Requests on the paths
    `batched` may be lines of a batch. `run` does the face's background work until it is cancelled; it gets
    the applications of all `batched` paths. /openapi.json lists the API by its `name`, with errors of the
    type `error`.
    """

    routes: Callable[[HttpService], Sequence[Route]]
    error_json: Callable[[RequestError, str], bytes]
    prefixes: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    header: bytes = b""
    id_header: bytes = b""
    statuses: Mapping[int, int] = field(default_factory=dict)
    allowance_headers: Callable[[Allowances], Headers] | None = None
    batched: tuple[str, ...] = ()
    run: Callable[[HttpService, Applications], Awaitable[None]] | None = None
    name: str = ""
    error: type[Struct] | None = None

    def has(self, path: str, headers: Headers) -> bool:
        return _is_below(path, self.prefixes) or (
            self.shares(path) and any(name == self.header for name, _ in headers)
        )

    def shares(self, path: str) -> bool:
        return _is_below(path, self.shared)


@dataclass(frozen=True)
class Faces:
    """All APIs of a server. `default` has the form of the errors on all other paths."""

    default: Face
    others: Sequence[Face] = ()

    def routes(self, http: HttpService) -> list[tuple[Face, Route]]:
        """The routes of each face."""
        return [(face, route) for face in (self.default, *self.others) for route in face.routes(http)]

    def joined(self, routes: Sequence[tuple[Face, Route]]) -> list[Route]:
        """The routes with one route for each path that two faces share."""
        default = [route for face, route in routes if face is self.default]
        others = [(face, route) for face, route in routes if face is not self.default]
        shared = {route.path: (face, route) for face, route in others if face.shares(route.path)}
        joined = [_either(route, *shared[route.path]) if route.path in shared else route for route in default]
        return joined + [route for _, route in others if route.path not in shared]

    def of(self, path: str, headers: Headers = ()) -> Face:
        return next((face for face in self.others if face.has(path, headers)), self.default)

    async def run(self, http: HttpService, routes: Sequence[tuple[Face, Route]]) -> None:
        """Runs the background work of the faces, such as batches, until cancelled. `routes`: of all faces."""
        batched = {route.path: route.app for face, route in routes if route.path in face.batched}
        async with asyncio.TaskGroup() as tasks:
            for face in (self.default, *self.others):
                if face.run is not None:
                    tasks.create_task(_run(face.run(http, batched)))

    def error_json(self, path: str, error: RequestError) -> bytes:
        """For requests whose headers and id are unknown."""
        return self.of(path).error_json(with_short_texts(error), "")

    def error_response(
        self, scope: Scope, error: RequestError, headers: dict[str, str] | None = None
    ) -> Response:
        """The answer to a refused request, in the form of its face. The log gets the error's code."""
        scope[ERROR_CODE] = error.code
        scope[ALLOWANCES] = error.allowances
        face = self.of(scope["path"], scope["headers"])
        body = face.error_json(with_short_texts(error), scope.get(ANSWER_ID, ""))
        status = face.statuses.get(error.status, error.status)
        return Response(body, status, {**(headers or {}), **error_headers(error)}, "application/json")


async def _run(work: Awaitable[None]) -> None:
    await work


def _is_below(path: str, prefixes: Sequence[str]) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)


def _either(default: Route, face: Face, other: Route) -> Route:
    """A route that two faces share. The request's headers decide between them."""
    return Route(default.path, _Either(default.app, face, other.app), methods=default.methods)


class _Either:
    """An ASGI application that calls `other` for the requests of its face, and `default` for the rest."""

    def __init__(self, default: ASGIApp, face: Face, other: ASGIApp) -> None:
        self._default = default
        self._face = face
        self._other = other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_other = self._face.has(scope["path"], scope["headers"])
        await (self._other if is_other else self._default)(scope, receive, send)


def with_short_texts(error: RequestError) -> RequestError:
    """The error with its texts shortened: they may quote a request, up to its whole body."""
    return RequestError(
        shortened(error.message, MAX_MESSAGE),
        status=error.status,
        param=None if error.param is None else shortened(error.param, MAX_PARAM),
        code=error.code,
        retry_after=error.retry_after,
        allowances=error.allowances,
    )


def shortened(text: str, most: int) -> str:
    """The text, or the beginning and end of a text of more than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 2 :]}"


def error_headers(error: RequestError) -> dict[str, str]:
    """The header that says when to try again (429 and 503), not to try again (504 and 507; OpenAI's and
    Anthropic's clients read it), how to authenticate (401), or which protocol to ask for (426)."""
    if error.status in (504, 507):
        return {"x-should-retry": "false"}
    if error.status == 426:
        return {"upgrade": "websocket", "sec-websocket-version": "13"}
    if error.status in (429, 503):
        return {"retry-after": str(error.retry_after or RETRY_AFTER_SECONDS)}
    return {"www-authenticate": "Bearer"} if error.status == 401 else {}


def route(
    method: str, path: str, http: HttpService, handler: Handler, operation: Operation | None = None
) -> Route:
    """A route to a handler. /openapi.json lists it if it has an `operation`."""

    async def handle(request: Request) -> Response:
        return await handler(http, request)

    if operation is None:
        return Route(path, handle, methods=[method])
    return DescribedRoute(method, path, handle, operation)
