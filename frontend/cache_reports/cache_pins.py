"""POST /cache/pin and DELETE /cache/pin/ID: prefixes that are never evicted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import TypeAlias

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.errors import RequestError
from ...runtime.messages import (
    TOKEN_BYTES,
    CheckPin,
    Generate,
    Pin,
    PinFits,
    PinPrefix,
    PrefixPinned,
    UnpinPrefix,
)
from ...runtime.sampling_params import SamplingParams
from ..core.prepare import new_id
from ..core.replica.generation import early_end
from ..core.service import Service
from ..http.allowances import quota_of
from ..http.apis import json_response
from ..http.endpoint import close_when_gone
from ..http.http_service import HttpService
from ..http.tenants import cache_scope, key_of, tenant_of
from ..http.time_limit import TimeLimit
from .cache_answers import PinDeleted, show_pin
from .cache_endpoints import ANSWER_SECONDS, ask_scheduler, ask_schedulers, check_answer, check_query

PIN_ATTEMPTS = 3
"""Attempts to pin a prefix, because computed pages may be evicted before they are pinned."""
NOT_CACHED = "prefix_not_cached"

PinReader: TypeAlias = Callable[[HttpService, Request], Awaitable[tuple[Service, PinPrefix, str, str]]]
"""Reads a request to pin a prefix. Returns the service of its model, the scheduler's message, the name of the
prefix's field, and the digest of its adapter."""


async def pin_prefix(read_pin: PinReader, http: HttpService, request: Request) -> Response:
    """Computes the missing part of a prefix, and keeps its full pages for a time."""
    check_query(request)
    async with TimeLimit(http.service.config.request_timeout).of_preparation():
        service, order, param, adapter = await read_pin(http, request)
        pinned = await _pin(service, request, order, param, adapter)
    return json_response(show_pin(pinned, service.engine.check_serving()))


async def _pin(service: Service, request: Request, order: PinPrefix, param: str, adapter: str) -> Pin:
    """Computes and pins a prefix in all replicas, because a request with it may go to any of them. `param` is
    the field with the prefix, for errors."""
    key = key_of(request)
    page_bytes = service.engine.check_serving().page_size * TOKEN_BYTES
    computing = Generate(
        "",
        order.client,
        # Whole pages are pinned, so a recurrent state must be kept at their end.
        order.tokens[: len(order.tokens) // page_bytes * page_bytes] or order.tokens,
        SamplingParams(max_tokens=1, temperature=0.0),
        namespace=order.namespace,
        tenant=tenant_of(request, None, service.config),
        priority=0 if key is None else key.priority,
        quota=quota_of(key, len(order.tokens) // 4),
        adapter=adapter,
    )
    check = CheckPin(order.client, 0, order.scope, order.namespace, order.tokens)
    await ask_schedulers(service, PinFits, lambda query: replace(check, query=query), param=param)
    if service.engine.replicas > 1:
        order.pin = _name_pin(order)
    pins = []
    for replica in service.engine.numbers_up:
        pins.append(await _pin_at(service, request, order, computing, replica, param))
        computing = replace(computing, quota=None)  # a pin is one request of its key
    pages = sum(pin.pages for pin in pins)
    return replace(pins[0], pages=pages)


async def _pin_at(
    service: Service, request: Request, order: PinPrefix, computing: Generate, replica: int, param: str
) -> Pin:
    """Computes and pins a prefix in one replica."""
    computing = replace(computing, request=f"{new_id('pinning')}-0")
    for attempt in range(1, PIN_ATTEMPTS + 1):
        await _compute(service, request, computing, replica)
        try:
            answer = await ask_scheduler(
                service, PrefixPinned, lambda query: replace(order, query=query), replica, param
            )
        except RequestError as error:
            if error.code != NOT_CACHED or attempt == PIN_ATTEMPTS:
                raise
        else:
            return answer.pin
    raise AssertionError("the last attempt raises or returns")


def _name_pin(order: PinPrefix) -> str:
    """The same name for a prefix in all replicas, also in one that has started again since it was pinned."""
    parts = (order.scope.encode(), order.namespace.encode(), order.tokens)
    return f"pin-{blake2b(b'/'.join(parts), digest_size=16).hexdigest()}"


async def unpin_prefix(http: HttpService, request: Request) -> Response:
    check_query(request)
    engines = [each for each in http.engines if each.is_up] or http.engines[:1]
    engines[0].check_serving()
    scope = cache_scope(request, http.service.config)
    pin, client = request.path_params["id"], engines[0].client
    asked = [
        engine.ask_all(lambda query: UnpinPrefix(client, query, pin, scope), ANSWER_SECONDS)
        for engine in engines
    ]
    answers = [answer for each in await asyncio.gather(*asked) for answer in each.values()]
    if not any(isinstance(answer, PrefixPinned) for answer in answers):
        check_answer(PrefixPinned, next(iter(answers), None))
    return json_response(PinDeleted(pin))


async def _compute(service: Service, request: Request, computing: Generate, replica: int) -> None:
    """Computes a prefix by sampling a token, also if all is cached: that fails for a damaged KV cache."""
    generation = service.engine.start([computing], replica)
    watch = asyncio.create_task(close_when_gone(request.receive, generation))
    try:
        await generation.accepted()
        outputs = [arrival.output for arrival in await generation.next()]
    finally:
        watch.cancel()
        service.engine.forget(generation)
    for output in outputs:
        if output.finish in ("error", "abort"):
            raise early_end(output)
