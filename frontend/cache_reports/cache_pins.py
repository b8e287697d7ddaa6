"""POST /cache/pin and DELETE /cache/pin/ID: prefixes that are never evicted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.errors import RequestError
from ...runtime.messages import CheckPin, Generate, Pin, PinFits, PinPrefix, PrefixPinned, UnpinPrefix
from ...runtime.sampling_params import SamplingParams
from ..core.prepare import new_id
from ..core.replica.generation import early_end
from ..core.service import Service
from ..http.allowances import quota_of
from ..http.apis import json_response
from ..http.http_service import HttpService
from ..http.tenants import cache_scope, key_of, tenant_of
from .cache_answers import PinDeleted, show_pin
from .cache_endpoints import ask_scheduler, check_query

PIN_ATTEMPTS = 3
"""Attempts to pin a prefix, because computed pages may be evicted before they are pinned."""
NOT_CACHED = "prefix_not_cached"

PinReader: TypeAlias = Callable[[HttpService, Request], Awaitable[tuple[PinPrefix, str]]]
"""Reads a request to pin a prefix. Returns the scheduler's message, and the name of the prefix's field."""


async def pin_prefix(read_pin: PinReader, http: HttpService, request: Request) -> Response:
    """Computes the missing part of a prefix, and keeps its full pages for a time."""
    service = http.service
    check_query(request)
    pin, param = await read_pin(http, request)
    computing = Generate(
        f"{new_id('pinning')}-0",
        pin.client,
        pin.tokens,
        SamplingParams(max_tokens=1, temperature=0.0),
        namespace=pin.namespace,
        tenant=tenant_of(request, None, service.config),
        quota=quota_of(key_of(request), len(pin.tokens) // 4),
    )
    pinned = await _pin(service, computing, pin, param)
    return json_response(show_pin(pinned, service.engine.check_serving()))


async def unpin_prefix(http: HttpService, request: Request) -> Response:
    service = http.service
    check_query(request)
    service.engine.check_serving()
    scope = cache_scope(request, service.config)
    pin, client = request.path_params["id"], service.engine.client
    await ask_scheduler(service, PrefixPinned, lambda query: UnpinPrefix(client, query, pin, scope))
    return json_response(PinDeleted(pin))


async def _pin(service: Service, computing: Generate, order: PinPrefix, param: str) -> Pin:
    """Computes and pins a prefix. `param` is the field with the prefix, for errors."""
    check = CheckPin(order.client, 0, order.scope, order.namespace, order.tokens)
    await ask_scheduler(service, PinFits, lambda query: replace(check, query=query), param=param)
    for attempt in range(1, PIN_ATTEMPTS + 1):
        await _compute(service, computing)
        try:
            answer = await ask_scheduler(
                service, PrefixPinned, lambda query: replace(order, query=query), param=param
            )
        except RequestError as error:
            if error.code != NOT_CACHED or attempt == PIN_ATTEMPTS:
                raise
        else:
            return answer.pin
    raise AssertionError("the last attempt raises or returns")


async def _compute(service: Service, request: Generate) -> None:
    """Computes a prefix by sampling a token, also if all is cached: that fails for a damaged KV cache."""
    generation = service.engine.start([request])
    try:
        await generation.accepted()
        outputs = [arrival.output for arrival in await generation.next()]
    finally:
        service.engine.forget(generation)
    for output in outputs:
        if output.finish in ("error", "abort"):
            raise early_end(output)
