"""GET and DELETE /cache, POST /cache/pin, DELETE /cache/pin/ID and /cache/lease/KEY: control of the cache."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ...runtime.errors import RequestError
from ...runtime.messages import (
    CacheControl,
    CacheDropped,
    CacheReport,
    CheckPin,
    DropCache,
    Generate,
    PinFits,
    PinnedPrefix,
    PinPrefix,
    PrefixPinned,
    QueryCache,
    QueryRefused,
    Tokens,
    TreeReport,
    UnpinPrefix,
)
from ...runtime.sampling_params import SamplingParams
from ..core import leases
from ..core.prepare import cache_namespace, new_id
from ..core.replica.generation import early_end
from ..core.service import Service
from ..core.validation import check_salt
from ..http.allowances import quota_of
from ..http.http_service import HttpService
from ..http.tenants import cache_scope, key_of, tenant_of
from .cache_answers import Freed, LeaseEnds, PinDeleted, make_status, measure_pages, show_freed, show_pin

ANSWER_SECONDS = 10.0
DROP_SECONDS = 600.0
"""The disk is overwritten before the answer: some GB in ten seconds."""
PIN_ATTEMPTS = 3
"""Computed pages may be evicted before they are pinned."""
NOT_CACHED = "prefix_not_cached"
Answer = TypeVar("Answer", CacheReport, CacheDropped, PinFits, PrefixPinned, TreeReport)

PinReader: TypeAlias = Callable[[HttpService, Request], Awaitable[tuple[PinPrefix, str]]]
"""reads a request to pin a prefix: the scheduler's message, and the name of the field with the prefix"""


async def show_cache(http: HttpService, request: Request) -> Response:
    service = http.service
    model = service.engine.check_serving()
    scope = cache_scope(request, service.config)
    salt = read_salt(request)
    check_salt(salt)
    own = cache_namespace(scope, salt)
    client = service.engine.client
    tenant = tenant_of(request, None, service.config) or None
    report = await ask_scheduler(
        service, CacheReport, lambda query: QueryCache(client, query, scope, own, tenant)
    )

    def decode(tokens: Tokens) -> str:
        return service.tokenizer.decode(tokens, skip_special_tokens=False)

    is_shared = own == "" and service.config.has_several_keys
    shown = None if is_shared else decode
    return _json(make_status(report, model, own, shown, is_isolated=service.config.isolate_keys))


async def drop_cache(http: HttpService, request: Request) -> Response:
    """Drops cached pages that are not in use: of one salt, which may be empty, or all that the key may
    use."""
    service = http.service
    model = service.engine.check_serving()
    scope = cache_scope(request, service.config)
    salt = read_salt(request)
    namespace = None if salt is None else cache_namespace(scope, salt)
    client = service.engine.client
    try:
        dropped = await ask_scheduler(
            service, CacheDropped, lambda query: DropCache(client, query, scope, namespace), DROP_SECONDS
        )
    finally:  # an order without an answer may still be carried out
        service.forget_prompts(scope, namespace)
    freed = measure_pages(dropped.pages, model)
    freed.tokens = dropped.tokens
    return _json(Freed(freed, show_freed(dropped)))


async def pin_prefix(read_pin: PinReader, http: HttpService, request: Request) -> Response:
    """Computes the missing part of a prefix, and keeps its full pages for a time."""
    service = http.service
    _check_query(request)
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
    return _json(show_pin(pinned, service.engine.check_serving()))


async def unpin_prefix(http: HttpService, request: Request) -> Response:
    service = http.service
    _check_query(request)
    service.engine.check_serving()
    scope = cache_scope(request, service.config)
    pin, client = request.path_params["id"], service.engine.client
    await ask_scheduler(service, PrefixPinned, lambda query: UnpinPrefix(client, query, pin, scope))
    return _json(PinDeleted(pin))


async def end_lease(http: HttpService, request: Request) -> Response:
    """Ends the leases under a key of the caller's. Answers 202 before they have ended."""
    service = http.service
    salt = read_salt(request, "user")
    service.engine.check_serving()
    check_salt(salt)
    namespace = cache_namespace(cache_scope(request, service.config), salt)
    tenant = tenant_of(request, request.query_params.get("user"), service.config)
    key: str = request.path_params["key"]
    if not key:
        raise RequestError(
            "The path has no key: send DELETE /cache/lease/KEY with the key of the leases to end.",
            param="key",
            code="invalid_value",
        )
    leases.end_lease(service.engine, namespace, tenant, key)
    return _json(LeaseEnds(key), 202)


def read_salt(request: Request, *more: str) -> str | None:
    """The query parameter `cache_salt`. Parameters other than it and `more` are refused."""
    _check_query(request, "cache_salt", *more)
    return request.query_params.get("cache_salt")


def _check_query(request: Request, *known: str) -> None:
    """Refuses unknown and repeated parameters: a misspelt `cache_salt` would make DELETE drop everything."""
    for name in request.query_params:
        if len(request.query_params.getlist(name)) > 1:
            raise RequestError(
                f"The query parameter {name!r} is there more than once: give one request for each.",
                param=name,
                code="invalid_value",
            )
        if name not in known:
            there = f"there is {', '.join(known)}" if known else "none is known here"
            raise RequestError(
                f"The query parameter {name!r} is unknown: {there}.", param=name, code="unknown_parameter"
            )


async def _pin(service: Service, computing: Generate, order: PinPrefix, param: str) -> PinnedPrefix:
    """`param` is the field with the prefix."""
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
    """Samples one token, also if everything is cached: that fails if the cached KV is damaged."""
    generation = service.engine.start([request])
    try:
        await generation.accepted()
        outputs = [arrival.output for arrival in await generation.next()]
    finally:
        service.engine.forget(generation)
    for output in outputs:
        if output.finish in ("error", "abort"):
            raise early_end(output)


async def ask_scheduler(
    service: Service,
    kind: type[Answer],
    question: Callable[[int], CacheControl],
    seconds: float = ANSWER_SECONDS,
    param: str | None = None,
) -> Answer:
    """`param` is the field at fault if a refusal names none."""
    answer = await service.engine.ask(question, seconds)
    if isinstance(answer, QueryRefused):
        raise RequestError(
            answer.message, status=answer.status, param=answer.param or param, code=answer.code
        )
    if not isinstance(answer, kind):
        message = (
            "The scheduler did not answer in time. An order may still be carried out later, which GET /cache "
            "shows; try again in a moment."
        )
        raise RequestError(message, status=503, code="no_answer")
    return answer


def _json(value: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
