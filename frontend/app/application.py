"""The HTTP application: maps paths to handlers, guards them, and formats failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ...runtime.config import ServeConfig
from ...runtime.errors import RequestError
from ...runtime.messages import Pin
from ..api.anthropic.protocol import MessagesRequest
from ..api.native.protocol import GenerateRequest
from ..api.openai.not_served import why_not_served
from ..api.openai.pin import read_pin
from ..api.openai.protocol import ChatRequest, CompletionRequest, PinRequest
from ..api.openapi.endpoint import MOVED_PATH, document_routes
from ..api.openapi.endpoint import OPEN_PATHS as DOCUMENT_PATHS
from ..cache_reports.cache_answers import CacheStatus, CacheTree, Freed, LeaseEnds, NodeText, PinDeleted
from ..cache_reports.cache_endpoints import drop_cache, end_lease, show_cache, show_node, show_tree
from ..cache_reports.cache_explain import PATHS, explain_prompt, generation_endpoints
from ..cache_reports.cache_pins import pin_prefix, unpin_prefix
from ..core.cache_misses.explanation import Explanation
from ..core.declared import one_of
from ..core.service import VERSION
from ..core.text.close_names import close_name
from ..core.work.caller import ClientGoneError
from ..http.access import METRICS_PATH, OPEN_PATHS, AccessMiddleware
from ..http.apis import Api, Apis, json_response, route
from ..http.endpoint import internal_error
from ..http.history import MAX_MINUTES, ShownHistory
from ..http.http_service import HttpService
from ..http.operation import Operation
from ..http.outcome import CLIENT_CLOSED_REQUEST, observe
from ..http.server.limits import check_descriptors
from ..page.endpoint import OPEN_PATHS as PAGE_PATHS
from ..page.endpoint import page_routes
from ..stored.responses.protocol import ResponsesRequest
from .server_status import ServerRequests, ServerStatus, list_requests, show_history, show_server

_LEASES = "/cache/lease"


class Health(msgspec.Struct):
    status: Literal["ok"] = "ok"


class Version(msgspec.Struct):
    version: str


_NAMESPACE = {"cache_salt": str, "model": str}
_SHOW_CACHE = Operation(
    summary="Show the contents of the prefix cache", query=_NAMESPACE, errors=(404,), reply=CacheStatus
)
_SHOW_TREE = Operation(
    summary="Show the largest branches of the prefix tree", query=_NAMESPACE, errors=(404,), reply=CacheTree
)
_SHOW_NODE = Operation(
    summary="Show the text of a node of the prefix tree", query=_NAMESPACE, errors=(404,), reply=NodeText
)
_DROP_CACHE = Operation(
    summary="Drop cached pages that are not in use", query=_NAMESPACE, errors=(404,), reply=Freed
)
_PIN = Operation(
    summary="Compute a prefix and keep it",
    example={"prompt": "A text of at least one page of tokens", "ttl_s": 60},
    body=PinRequest,
    reply=Pin,
    errors=(404, 409, 429, 504),
)
_UNPIN = Operation(summary="End a pin", reply=PinDeleted)
_END_LEASE = Operation(
    summary="End the leases of a key", query=_NAMESPACE, errors=(404,), reply=LeaseEnds, status=202
)
_EXPLAIN = Operation(
    summary="Say why tokens of a prompt are not cached",
    query={"path": Annotated[str, one_of(PATHS)]},
    body=ChatRequest,
    other_bodies=(CompletionRequest, MessagesRequest, ResponsesRequest, GenerateRequest),
    example={"messages": [{"role": "user", "content": "Why is the sky blue?"}]},
    reply=Explanation,
)
_READY = Operation(summary="Say whether a request would be served now", reply=Health)
_ALIVE = Operation(summary="Say that the HTTP process answers", reply=Health)
_SHOW_VERSION = Operation(summary="Show the server's version", reply=Version)
_METRICS = Operation(summary="Show metrics for Prometheus", reply_type="text/plain")
_SHOW_SERVER = Operation(summary="Show the server's state, model and pages", reply=ServerStatus)
_LIST_REQUESTS = Operation(summary="List open, ended and failed requests", reply=ServerRequests)
_SHOW_HISTORY = Operation(
    summary="Show the last hour of the metrics that the page plots",
    query={"minutes": Annotated[int, msgspec.Meta(ge=1, le=MAX_MINUTES)], "after": float},
    reply=ShownHistory,
)


def server_routes(http: HttpService, apis: Apis) -> list[tuple[Api, Route]]:
    """The routes of the APIs, and those of the server itself, which belong to no API."""
    server = replace(apis.default, name="Server")
    served = apis.routes(http)
    explain = partial(explain_prompt, generation_endpoints(served))
    own = [
        route("GET", "/cache", http, show_cache, _SHOW_CACHE),
        route("GET", "/cache/tree", http, show_tree, _SHOW_TREE),
        route("GET", "/cache/tree/{id}", http, show_node, _SHOW_NODE),
        route("DELETE", "/cache", http, drop_cache, _DROP_CACHE),
        route("POST", "/cache/pin", http, partial(pin_prefix, read_pin), _PIN),
        route("POST", "/cache/explain", http, explain, _EXPLAIN),
        route("DELETE", "/cache/pin/{id}", http, unpin_prefix, _UNPIN),
        route("DELETE", f"{_LEASES}/{{key:path}}", http, end_lease, _END_LEASE),
        route("GET", "/health", http, _check_health, _READY),
        route("GET", "/health/ready", http, _check_health, _READY),
        route("GET", "/health/live", http, _answer_alive, _ALIVE),
        route("GET", "/ping", http, _check_health, _READY),
        route("GET", "/version", http, _show_version, _SHOW_VERSION),
        route("GET", METRICS_PATH, http, _show_metrics, _METRICS),
        route("GET", "/server", http, show_server, _SHOW_SERVER),
        route("GET", "/server/requests", http, list_requests, _LIST_REQUESTS),
        route("GET", "/server/history", http, show_history, _SHOW_HISTORY),
    ]
    return [*served, *((server, each) for each in own)]


def create_app(http: HttpService, apis: Apis, described: Sequence[tuple[Api, Route]]) -> ASGIApp:
    """The application of the routes `described`."""
    open_paths = _open_paths(http.service.config)
    routes = [*apis.joined(described), *document_routes(http, described, open_paths), *page_routes(http)]
    app = Starlette(routes=routes, exception_handlers=_Failures(http, apis, _list_paths(routes)).handlers())
    app.router.redirect_slashes = False  # a redirect would trust the client's Host header
    return _strip_last_slash(observe(AccessMiddleware(app, apis, http, open_paths), http.listeners))


def _strip_last_slash(app: ASGIApp) -> ASGIApp:
    """Serves `/v1/models/` as `/v1/models`. The page at /docs loads its files relative to its own path, and
    the key of a lease may end with a slash."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path.endswith("/") and path not in ("/", MOVED_PATH) and not path.startswith(f"{_LEASES}/"):
            scope = {**scope, "path": path.removesuffix("/")}
        await app(scope, receive, send)

    return call


def _open_paths(config: ServeConfig) -> frozenset[str]:
    """The paths that need no key."""
    open_paths = OPEN_PATHS | DOCUMENT_PATHS | PAGE_PATHS
    return open_paths - {METRICS_PATH} if config.protect_metrics else open_paths


async def _answer_alive(http: HttpService, request: Request) -> Response:
    """Says that this process answers, also while the model is starting: a restart would not help then."""
    return json_response(Health())


async def _check_health(http: HttpService, request: Request) -> Response:
    """Says whether a request would be served now; otherwise raises a RequestError with the status 503."""
    http.check_responding()
    check_descriptors()
    return json_response(Health())


async def _show_version(http: HttpService, request: Request) -> Response:
    return json_response(Version(VERSION))


async def _show_metrics(http: HttpService, request: Request) -> Response:
    await http.metrics.update(http.engines)
    return Response(http.metrics.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})


def _list_paths(routes: Sequence[Route]) -> Sequence[str]:
    """The paths as errors name them: each once, without paths that have a parameter or are not served."""
    served = [route.path for route in routes if route.include_in_schema]
    return list(dict.fromkeys(path for path in served if "{" not in path and not path.endswith("/")))


def _suggest_path(path: str, served: Sequence[str]) -> str:
    """Advice for an unknown path: the path that may have been meant, or all served paths."""
    shorter = path.rstrip("/")
    if f"/v1{shorter}" in served:
        return f"Did you mean /v1{shorter}? A client's base_url ends with /v1."
    if shorter.startswith("/v1/v1/") and shorter.removeprefix("/v1") in served:
        meant = shorter.removeprefix("/v1")
        return f"Did you mean {meant}? Leave /v1 out of the client's base_url: Anthropic's clients add it."
    near = shorter if shorter in served else close_name(shorter, served)
    return f"It has {', '.join(served)}." if near is None else f"Did you mean {near}?"


def _find_methods(request: Request) -> list[str]:
    """The methods of all routes with the request's path."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    here = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in here for method in route.methods or ()})


class _Failures:
    """Answers requests whose handlers raise. `served` are the paths that errors name."""

    def __init__(self, http: HttpService, apis: Apis, served: Sequence[str]) -> None:
        self._failed = http.metrics.failed
        self._apis = apis
        self._served = served

    def handlers(self) -> dict[type[Exception], Callable[..., Awaitable[Response]]]:
        return {
            RequestError: self._refuse,
            HTTPException: self._refuse_route,
            ClientGoneError: self._answer_gone,
            RecursionError: self._refuse_depth,
            Exception: self._answer_bug,
        }

    async def _refuse(
        self, request: Request, error: RequestError, headers: dict[str, str] | None = None
    ) -> Response:
        self._failed.labels(error.status).inc()
        return self._apis.error_response(request.scope, error, headers)

    async def _refuse_route(self, request: Request, error: HTTPException) -> Response:
        path = request.url.path
        if (why := why_not_served(request.method, path)) is not None:
            return await self._refuse(request, RequestError(why, status=404, code="not_served"))
        if error.status_code == 405:
            methods = _find_methods(request)
            takes = " and ".join(method for method in methods if method != "HEAD")
            message = f"{path} does not take {request.method} requests, but {takes}."
            refusal = RequestError(message, status=405, code="method_not_allowed")
            return await self._refuse(request, refusal, {"allow": ", ".join(methods)})
        message = f"There is no {path} on this server. {_suggest_path(path, self._served)}"
        refusal = RequestError(message, status=error.status_code, code="not_found")
        return await self._refuse(request, refusal, dict(error.headers or {}))

    async def _answer_gone(self, request: Request, error: ClientGoneError) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def _refuse_depth(self, request: Request, error: RecursionError) -> Response:
        """Answers a RecursionError: the server recurses only over data that the client sent."""
        return await self._refuse(
            request, RequestError("The request's JSON is nested too deeply.", code="invalid_json")
        )

    async def _answer_bug(self, request: Request, error: Exception) -> Response:
        return await self._refuse(request, internal_error())
