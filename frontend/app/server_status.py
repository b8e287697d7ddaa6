"""GET /server, /server/requests and /server/history: what operators see of the running server."""

from __future__ import annotations

import asyncio
import math
import time

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.errors import RequestError
from ...runtime.messages import ModelReady, OpenRequest, Stats
from ..cache_reports.cache_endpoints import check_query
from ..core.replica.engine_client import EngineState
from ..core.replica.merging import merge_request_lists
from ..core.service import VERSION, Service
from ..http.apis import json_response
from ..http.history import MAX_MINUTES
from ..http.http_service import HttpService
from ..http.request_records import RequestRecord, merge_records
from ..http.tenants import caller_of, owner_of, tenant_of


class LayerPages(Struct):
    """The pages of the KV cache of `layers` layers, in all replicas. Their attention reads the latest `reach`
    tokens; null means all tokens. total = free + cached + used."""

    layers: int
    reach: int | None
    total: int
    free: int
    cached: int
    used: int


class ModelStatus(Struct):
    """The state of a model. `expires_at`, in seconds since 1970, is when it will be unloaded if no request
    comes; null means never."""

    name: str
    state: EngineState
    max_model_len: int | None
    expires_at: float | None


class ServerStatus(Struct):
    """The state of the server: that of its first model, and of each of its `models`. `uptime_s` is of this
    HTTP process. Before the first model is ready, `max_model_len` and `pages` are null."""

    state: EngineState
    model: str
    names: list[str]
    adapters: list[str]
    version: str
    device: str
    uptime_s: int
    max_model_len: int | None
    http_processes: int
    replicas: int
    replicas_up: int
    pages: list[LayerPages] | None
    models: list[ModelStatus]


class ServerRequests(Struct):
    """The caller's requests: the oldest open ones, null while the scheduler does not answer, and the last
    ones that have ended or failed, the newest first. `open_total` counts all open ones."""

    open: list[OpenRequest] | None
    open_total: int | None
    recent: list[RequestRecord]
    failed: list[RequestRecord]


async def show_server(http: HttpService, request: Request) -> Response:
    check_query(request)
    service, engine = http.service, http.service.engine
    model, stats = engine.model, await engine.stats()
    listed = [_list_pages(each.model, each.stats) for each in stats]
    return json_response(
        ServerStatus(
            state=engine.state,
            model=service.config.served_model_name,
            names=list(service.config.model_names),
            adapters=list(engine.adapters),
            version=VERSION,
            device=service.config.device if model is None else model.device,
            uptime_s=int(time.time()) - service.started,
            max_model_len=None if model is None else model.max_model_len,
            http_processes=service.config.api_workers,
            replicas=engine.count_replicas(),
            replicas_up=len(engine.numbers_up),
            pages=[_add_pages(group) for group in zip(*listed, strict=True)] or None,
            models=[_describe_model(each.service) for each in http.models],
        )
    )


def _describe_model(service: Service) -> ModelStatus:
    engine = service.engine
    return ModelStatus(
        name=service.config.served_model_name,
        state=engine.state,
        max_model_len=None if engine.model is None else engine.model.max_model_len,
        expires_at=None if engine.use is None or not engine.is_loaded else engine.use.expires_at,
    )


def _list_pages(model: ModelReady, stats: Stats) -> list[LayerPages]:
    free = stats.pages_total - stats.pages_used - stats.pages_cached
    unused = [(free, stats.pages_cached), *((each.free, each.cached) for each in stats.windows)]
    return [
        LayerPages(group.layers, group.reach, group.num_pages, free, cached, group.num_pages - free - cached)
        for group, (free, cached) in zip(model.groups, unused, strict=True)
    ]


def _add_pages(group: tuple[LayerPages, ...]) -> LayerPages:
    """The pages of the same layers in all replicas."""
    sums = {name: sum(getattr(each, name) for each in group) for name in ("total", "free", "cached", "used")}
    return replace(group[0], **sums)


async def list_requests(http: HttpService, request: Request) -> Response:
    """Lists requests: on a server with API keys those of the caller's key, otherwise all."""
    check_query(request)
    config, engine = http.service.config, http.service.engine
    owner = owner_of(request.scope) if config.api_keys else None
    tenant = tenant_of(request, None, config) or None
    lists = await asyncio.gather(*(each.list_requests(tenant) for each in http.engines))
    running = merge_request_lists([each for each in lists if each is not None])
    kept = merge_records(await engine.list_records(owner))
    return json_response(
        ServerRequests(
            None if running is None else running.items,
            None if running is None else running.total,
            kept.recent,
            kept.failed,
        )
    )


async def show_history(http: HttpService, request: Request) -> Response:
    """Shows samples of the metrics of the last `minutes`, those after the time `after`."""
    check_query(request, "minutes", "after")
    minutes = _read_number(request, "minutes", MAX_MINUTES)
    after = _read_number(request, "after", 0)
    if not (minutes.is_integer() and 1 <= minutes <= MAX_MINUTES):
        raise _wrong(request, "minutes", f"a whole number from 1 to {MAX_MINUTES}")
    caller = caller_of(request, http.service.config)
    shown = await http.service.work.call(caller, http.history.show, int(minutes), after, time.time())
    return json_response(shown)


def _read_number(request: Request, name: str, default: float) -> float:
    try:
        number = float(request.query_params.get(name, default))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _wrong(request, name, "a number")
    return number


def _wrong(request: Request, name: str, expected: str) -> RequestError:
    sent = request.query_params[name][:20]
    message = f"The query parameter {name} is {sent!r}, but must be {expected}, as in ?{name}=15."
    return RequestError(message, param=name, code="invalid_value")
