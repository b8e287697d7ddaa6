"""The HTTP application: maps paths to handlers, guards them, and formats failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..runtime.config import ServeConfig
from ..runtime.errors import RequestError
from .api_keys import METRICS_PATH, OPEN_PATHS, Guard
from .cache_endpoints import drop_cache, end_lease, pin_prefix, show_cache, unpin_prefix
from .cache_explain import explain_prompt
from .cors import AllowedOrigins, Cors
from .descriptors import check_descriptors
from .hosts import HostGuard, hosts_to_check
from .http.endpoint import internal_error
from .http.faces import Faces, route
from .http.http_service import HttpService
from .http.request_log import RequestLog
from .request.service import VERSION
from .request_ids import RequestIds
from .text.close_names import close_name
from .work.caller import ClientGoneError

CLIENT_CLOSED_REQUEST = 499


def create_app(http: HttpService, faces: Faces) -> ASGIApp:
    routes = [
        *faces.routes(http),
        route("GET", "/cache", http, show_cache),
        route("DELETE", "/cache", http, drop_cache),
        route("POST", "/cache/pin", http, pin_prefix),
        route("POST", "/cache/explain", http, explain_prompt),
        route("DELETE", "/cache/pin/{id}", http, unpin_prefix),
        route("DELETE", "/cache/lease/{key:path}", http, end_lease),
        route("GET", "/health", http, _health),
        route("GET", "/health/ready", http, _health),
        route("GET", "/health/live", http, _alive),
        route("GET", "/ping", http, _health),
        route("GET", "/version", http, _version),
        route("GET", METRICS_PATH, http, _metrics),
    ]
    app = Starlette(routes=routes, exception_handlers=_Failures(http, faces, _named_paths(routes)).handlers())
    app.router.redirect_slashes = False  # a redirect's target would come from the Host header
    with_ids = RequestIds(_guarded(app, faces, http.service.config), faces)
    return RequestLog(with_ids) if http.service.config.log_requests else with_ids


def _guarded(app: ASGIApp, faces: Faces, config: ServeConfig) -> ASGIApp:
    if config.api_keys:
        open_paths = OPEN_PATHS - {METRICS_PATH} if config.protect_metrics else OPEN_PATHS
        app = Guard(app, faces, config.api_keys, open_paths)
    origins = AllowedOrigins(config.allowed_origins)
    hosts = hosts_to_check(config)
    if hosts is not None:
        app = HostGuard(app, faces, hosts, origins)
    return Cors(app, origins) if origins else app


async def _alive(http: HttpService, request: Request) -> Response:
    """Says that this process answers, also while the model is starting: a restart would not help then."""
    return _json({"status": "ok"})


async def _health(http: HttpService, request: Request) -> Response:
    """Says whether a request would be served now; otherwise raises a RequestError with the status 503."""
    http.service.engine.check_responding()
    check_descriptors()
    return _json({"status": "ok"})


async def _version(http: HttpService, request: Request) -> Response:
    return _json({"version": VERSION})


async def _metrics(http: HttpService, request: Request) -> Response:
    engine = http.service.engine
    http.metrics.scheduler.update(await engine.stats(), engine.epoch)
    return Response(http.metrics.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})


def _named_paths(routes: Sequence[Route]) -> Sequence[str]:
    """The paths as errors name them: each once, without paths that have a parameter or are not served."""
    served = [route.path for route in routes if route.include_in_schema]
    return list(dict.fromkeys(path for path in served if "{" not in path and not path.endswith("/")))


def _other_path(path: str, served: Sequence[str]) -> str:
    """Advice for an unknown path: the path that may have been meant, or all served paths."""
    shorter = path.rstrip("/")
    if f"/v1{shorter}" in served:
        return f"Did you mean /v1{shorter}? A client's base_url ends with /v1."
    near = shorter if shorter in served else close_name(shorter, served)
    return f"It has {', '.join(served)}." if near is None else f"Did you mean {near}?"


class _Failures:
    """Answers requests whose handlers raise. `served` are the paths that errors name."""

    def __init__(self, http: HttpService, faces: Faces, served: Sequence[str]) -> None:
        self._failed = http.metrics.failed
        self._faces = faces
        self._served = served

    def handlers(self) -> dict[type[Exception], Callable[..., Awaitable[Response]]]:
        return {
            RequestError: self._refused,
            HTTPException: self._wrong_route,
            ClientGoneError: self._gone,
            RecursionError: self._too_deep,
            Exception: self._crashed,
        }

    async def _refused(
        self, request: Request, error: RequestError, headers: dict[str, str] | None = None
    ) -> Response:
        self._failed.labels(error.status).inc()
        return self._faces.error_response(request.scope, error, headers)

    async def _wrong_route(self, request: Request, error: HTTPException) -> Response:
        path = request.url.path
        if error.status_code == 405:
            message, code = f"{path} does not take {request.method} requests.", "method_not_allowed"
        else:
            message = f"There is no {path} on this server. {_other_path(path, self._served)}"
            code = "not_found"
        refusal = RequestError(message, status=error.status_code, code=code)
        return await self._refused(request, refusal, dict(error.headers or {}))

    async def _gone(self, request: Request, error: ClientGoneError) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def _too_deep(self, request: Request, error: RecursionError) -> Response:
        """Answers a RecursionError: the server recurses only over data that the client sent."""
        return await self._refused(
            request, RequestError("The request's JSON is nested too deeply.", code="invalid_json")
        )

    async def _crashed(self, request: Request, error: Exception) -> Response:
        return await self._refused(request, internal_error())


def _json(value: dict[str, str]) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
