"""The APIs of a server. Each has its own paths, and its own form of errors on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ...runtime.api_keys import Allowances
from ...runtime.errors import RequestError
from .http_service import HttpService
from .operation import DescribedRoute, Operation
from .outcome import ERROR

RETRY_AFTER_SECONDS = 5
MAX_MESSAGE = 2048  # characters of an error's text
MAX_PARAM = 256
ANSWER_ID = "arbora.answer_id"
"""Key in the ASGI scope: the id of the answer, if the request's API has an `id_header`."""
ALLOWANCES = "arbora.allowances"
"""Key in the ASGI scope: the `Allowances` of the request's key, if the key has limits."""
Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
Handler: TypeAlias = Callable[[HttpService, Request], Awaitable[Response]]
Applications: TypeAlias = Mapping[str, ASGIApp]
"""ASGI applications by their paths"""


@dataclass(frozen=True)
class Api:
    """One API. Requests on the paths `prefixes` and below them are for this API.

    On the paths of `shared`, which the default API has too, only requests with the header `header` are for
    it. `error_json` writes an error; it takes the request's id, which is empty if the request has none.
    `statuses` maps statuses of errors to those of this API. Answers carry their id in the header `id_header`.
    `allowance_headers` say what their key may still use; the default are OpenAI's. Requests on the paths
    `batched` may be lines of a batch. `work_in_background` does the API's work beside requests until it is
    cancelled; it gets the applications of all `batched` paths. /openapi.json lists the API by its `name`,
    with errors of the type `error`.
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
    work_in_background: Callable[[HttpService, Applications], Coroutine[None, None, None]] | None = None
    name: str = ""
    error: type[Struct] | None = None

    def has(self, path: str, headers: Headers) -> bool:
        return _is_below(path, self.prefixes) or (
            self.shares(path) and any(name == self.header for name, _ in headers)
        )

    def shares(self, path: str) -> bool:
        return _is_below(path, self.shared)


@dataclass(frozen=True)
class Apis:
    """All APIs of a server. Paths of no other API belong to `default`, also for the form of errors."""

    default: Api
    others: Sequence[Api] = ()

    def routes(self, http: HttpService) -> list[tuple[Api, Route]]:
        """The routes of each API."""
        return [(api, route) for api in (self.default, *self.others) for route in api.routes(http)]

    def joined(self, routes: Sequence[tuple[Api, Route]]) -> list[Route]:
        """The routes, with a single route for each path that two APIs share."""
        default = [route for api, route in routes if api is self.default]
        others = [(api, route) for api, route in routes if api is not self.default]
        shared = {route.path: (api, route) for api, route in others if api.shares(route.path)}
        joined = [_either(route, *shared[route.path]) if route.path in shared else route for route in default]
        return joined + [route for _, route in others if route.path not in shared]

    def of(self, path: str, headers: Headers = ()) -> Api:
        return next((api for api in self.others if api.has(path, headers)), self.default)

    async def work_in_background(self, http: HttpService, routes: Sequence[tuple[Api, Route]]) -> None:
        """Does the APIs' work beside requests, such as batches, until cancelled. `routes` are those of all
        APIs."""
        batched = {route.path: route.app for api, route in routes if route.path in api.batched}
        async with asyncio.TaskGroup() as tasks:
            for api in (self.default, *self.others):
                if api.work_in_background is not None:
                    tasks.create_task(api.work_in_background(http, batched))

    def error_response(
        self, scope: Scope, error: RequestError, headers: dict[str, str] | None = None
    ) -> Response:
        """The answer to a refused request, in the form of its API. The log gets the error."""
        scope[ERROR] = error
        scope[ALLOWANCES] = error.allowances
        api = self.of(scope["path"], scope["headers"])
        body = api.error_json(with_short_texts(error), scope.get(ANSWER_ID, ""))
        status = api.statuses.get(error.status, error.status)
        return Response(body, status, {**(headers or {}), **error_headers(error)}, "application/json")


def _is_below(path: str, prefixes: Sequence[str]) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)


def _either(default: Route, api: Api, other: Route) -> Route:
    """A route that two APIs share. The request's headers decide between them."""
    return Route(default.path, _Either(default.app, api, other.app), methods=default.methods)


class _Either:
    """An ASGI application that calls `other` for the requests of its API, and `default` for the rest."""

    def __init__(self, default: ASGIApp, api: Api, other: ASGIApp) -> None:
        self._default = default
        self._api = api
        self._other = other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_other = self._api.has(scope["path"], scope["headers"])
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


def shortened(text: str, max_length: int) -> str:
    """The text, or the beginning and end of a text of more than `max_length` characters."""
    return text if len(text) <= max_length else f"{text[: max_length // 2]}…{text[-max_length // 2 :]}"


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


def json_response(value: Struct | bytes, status: int = 200) -> Response:
    """An answer with the JSON of `value`, which is a struct or its JSON."""
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Response(body, status, media_type="application/json")
