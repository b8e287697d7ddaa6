"""The HTTP application: maps paths to handlers, guards them, and formats failures."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

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
from .cache_endpoints import drop_cache, pin_prefix, show_cache, unpin_prefix
from .descriptors import check_descriptors
from .hosts import HostGuard, hosts_to_check
from .http.endpoint import GenerationEndpoint, internal_error
from .http.http_service import HttpService
from .http.request_log import ERROR_CODE, RequestLog
from .openai.chat import prepare_chat
from .openai.completions import prepare_completion
from .openai.errors import error_response
from .openai.models import list_models, show_model
from .openai.tokenize import detokenize, tokenize
from .request.service import VERSION
from .request_ids import RequestIds
from .text.close_names import close_name
from .work.caller import ClientGoneError

log = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/tokenize",
    "/detokenize",
    "/cache",
    "/cache/pin",
    "/health",
    "/ping",
    "/version",
    METRICS_PATH,
)
"""as errors name them"""
Handler = Callable[[HttpService, Request], Awaitable[Response]]


def create_app(http: HttpService) -> ASGIApp:
    def get(path: str, handler: Handler) -> Route:
        return Route(path, _bound(http, handler), methods=["GET"])

    def post(path: str, handler: Handler) -> Route:
        return Route(path, _bound(http, handler), methods=["POST"])

    def delete(path: str, handler: Handler) -> Route:
        return Route(path, _bound(http, handler), methods=["DELETE"])

    routes = [
        Route("/v1/chat/completions", GenerationEndpoint(http, prepare_chat), methods=["POST"]),
        Route("/v1/completions", GenerationEndpoint(http, prepare_completion), methods=["POST"]),
        get("/v1/models", list_models),
        get("/v1/models/", list_models),
        get("/v1/models/{model:path}", show_model),
        post("/tokenize", tokenize),
        post("/detokenize", detokenize),
        get("/cache", show_cache),
        delete("/cache", drop_cache),
        post("/cache/pin", pin_prefix),
        delete("/cache/pin/{id}", unpin_prefix),
        get("/health", _health),
        get("/ping", _health),
        get("/version", _version),
        get(METRICS_PATH, _metrics),
    ]
    app = Starlette(routes=routes, exception_handlers=_failure_handlers(http))
    app.router.redirect_slashes = False  # a redirect's target would come from the Host header
    with_ids = RequestIds(_guarded(app, http.service.config))
    return RequestLog(with_ids) if http.service.config.log_requests else with_ids


def _guarded(app: ASGIApp, config: ServeConfig) -> ASGIApp:
    if config.api_keys:
        open_paths = OPEN_PATHS - {METRICS_PATH} if config.protect_metrics else OPEN_PATHS
        app = Guard(app, config.api_keys, open_paths)
    hosts = hosts_to_check(config)
    return app if hosts is None else HostGuard(app, hosts)


def _bound(http: HttpService, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        return await handler(http, request)

    return handle


async def _health(http: HttpService, request: Request) -> Response:
    http.service.engine.check_responding()
    check_descriptors()
    return _json({"status": "ok"})


async def _version(http: HttpService, request: Request) -> Response:
    return _json({"version": VERSION})


async def _metrics(http: HttpService, request: Request) -> Response:
    engine = http.service.engine
    http.metrics.scheduler.update(await engine.stats(), engine.epoch)
    return Response(http.metrics.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})


def _other_path(path: str) -> str:
    """What may have been meant by a path that isn't served."""
    shorter = path.rstrip("/")
    if f"/v1{shorter}" in PATHS:
        return f"Did you mean /v1{shorter}? A client's base_url ends with /v1."
    near = shorter if shorter in PATHS else close_name(shorter, PATHS)
    return f"It has {', '.join(PATHS)}." if near is None else f"Did you mean {near}?"


def _failure_handlers(http: HttpService) -> dict[type[Exception], Callable[..., Awaitable[Response]]]:
    failed = http.metrics.failed

    async def refused(request: Request, error: RequestError) -> Response:
        failed.labels(error.status).inc()
        return _answer(request, error)

    async def wrong_route(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            message = f"{request.url.path} does not take {request.method} requests."
        else:
            message = f"There is no {request.url.path} on this server. {_other_path(request.url.path)}"
        failed.labels(error.status_code).inc()
        code = "method_not_allowed" if error.status_code == 405 else "not_found"
        headers = dict(error.headers or {})
        return _answer(request, RequestError(message, status=error.status_code, code=code), headers)

    async def gone(request: Request, error: ClientGoneError) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def too_deep(request: Request, error: RecursionError) -> Response:
        """The server recurses only over what the client sent."""
        return await refused(
            request, RequestError("The request's JSON is nested too deeply.", code="invalid_json")
        )

    async def crashed(request: Request, error: Exception) -> Response:
        failed.labels(500).inc()
        return _answer(request, internal_error())

    return {
        RequestError: refused,
        HTTPException: wrong_route,
        ClientGoneError: gone,
        RecursionError: too_deep,
        Exception: crashed,
    }


def _answer(request: Request, error: RequestError, headers: dict[str, str] | None = None) -> Response:
    request.scope[ERROR_CODE] = error.code
    return error_response(error, headers)


def _json(value: dict[str, str]) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
