"""GET and DELETE /cache, GET /cache/tree and /cache/tree/ID, DELETE /cache/lease/KEY."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ...runtime.errors import RequestError
from ...runtime.messages import (
    Adapter,
    CacheControl,
    CacheDropped,
    CacheReport,
    DropCache,
    ModelReady,
    NodeTokens,
    PinFits,
    PrefixPinned,
    QueryCache,
    QueryNode,
    QueryRefused,
    Tokens,
)
from ..core import leases
from ..core.prepare import cache_namespace, is_shared_by_keys
from ..core.replica.questions import Answer as AnyAnswer
from ..core.service import Service
from ..core.validation import check_salt
from ..http.apis import json_response
from ..http.http_service import HttpService
from ..http.tenants import cache_scope, caller_of, tenant_of
from .cache_answers import Decode, Freed, LeaseEnds, NodeText, add_freed, make_status, make_tree, show_freed
from .node_labels import make_label
from .report_merging import merge_dropped, merge_reports

ANSWER_SECONDS = 10.0
DROP_SECONDS = 600.0
"""Seconds to wait for dropped pages: the disk is overwritten first, some GB in ten seconds."""
Answer = TypeVar("Answer", CacheReport, NodeTokens, CacheDropped, PinFits, PrefixPinned)


class _View(NamedTuple):
    """The part of the cache that a request may see: namespaces in `scope`, and texts of the namespace `own`
    by `decode`, which is None if several API keys share it."""

    model: ModelReady
    scope: str
    own: str
    decode: Decode | None


async def show_cache(http: HttpService, request: Request) -> Response:
    service = _find_service(http, request)
    view = _find_view(service, request)
    tenant = tenant_of(request, None, service.config) or None
    reports = await ask_schedulers(
        service,
        CacheReport,
        lambda query: QueryCache(service.engine.client, query, view.scope, view.own, tenant),
    )
    report = merge_reports(reports, service.engine.replicas)
    is_isolated = service.config.isolate_keys
    return json_response(make_status(report, view.model, view.own, view.decode, is_isolated=is_isolated))


async def show_tree(http: HttpService, request: Request) -> Response:
    service = _find_service(http, request)
    view = _find_view(service, request)
    reports = await ask_schedulers(
        service,
        CacheReport,
        lambda query: QueryCache(service.engine.client, query, view.scope, view.own, nodes=True),
    )
    report = merge_reports(reports, service.engine.replicas)
    caller = caller_of(request, service.config)
    label = partial(make_label, tokenizer=service.tokenizer)
    return json_response(await service.work.call(caller, make_tree, report, view.model, view.decode, label))


async def show_node(http: HttpService, request: Request) -> Response:
    service = _find_service(http, request)
    view = _find_view(service, request)
    given: str = request.path_params["id"]
    if given.isascii() and given.isdigit() and len(given) < 10 and view.decode is not None:
        page, replica = divmod(int(given), service.engine.replicas)  # as `number_node` made it
        found = await ask_scheduler(
            service,
            NodeTokens,
            lambda query: QueryNode(service.engine.client, query, view.scope, view.own, page),
            replica,
        )
        if found.tokens is not None:
            caller = caller_of(request, service.config)
            text = await service.work.call(caller, view.decode, found.tokens)
            return json_response(NodeText(int(given), len(found.tokens) // 4, text))
    raise RequestError(
        f"There is no node {given[:20]} in your namespace: it may have been evicted or split, or several API "
        "keys share the namespace. GET /cache/tree lists the present nodes; both need the same cache_salt.",
        status=404,
        param="id",
        code="node_not_found",
    )


async def drop_cache(http: HttpService, request: Request) -> Response:
    """Drops unused cached pages: those of one adapter or salt, which may be empty, or all that the key may
    use. Without `model` those of all models that are loaded."""
    if request.query_params.get("model"):
        return json_response(await _drop(_find_service(http, request), request))
    loaded = [each for each in http.models if each.service.engine.is_up] or http.models[:1]
    freed = [await _drop(each.service, request) for each in loaded]
    return json_response(add_freed(freed))


async def _drop(service: Service, request: Request) -> Freed:
    """Drops unused cached pages of a model."""
    model = service.engine.check_serving()
    scope = cache_scope(request, service.config)
    salt = _read_salt(request)
    adapter = _find_adapter(service, request)
    namespace = None if salt is None and adapter is None else cache_namespace(scope, salt, adapter)
    client = service.engine.client
    try:
        dropped = await ask_schedulers(
            service, CacheDropped, lambda query: DropCache(client, query, scope, namespace), DROP_SECONDS
        )
    finally:  # pages may be dropped even if no answer comes
        service.forget_prompts(scope, namespace)
    return show_freed(merge_dropped(list(dropped.values())), model)


async def end_lease(http: HttpService, request: Request) -> Response:
    """Ends the caller's leases under a key. Answers 202 before the leases have ended."""
    service = _find_service(http, request)
    view = _find_view(service, request, "user")
    tenant = tenant_of(request, request.query_params.get("user"), service.config)
    key: str = request.path_params["key"]
    if not key:
        raise RequestError(
            "The path has no key: send DELETE /cache/lease/KEY with the key of the leases to end.",
            param="key",
            code="invalid_value",
        )
    leases.end_lease(service.engine, view.own, tenant, key)
    return json_response(LeaseEnds(key), 202)


def _find_service(http: HttpService, request: Request) -> Service:
    """The model that the query names, or the first one. Raises a 404 `RequestError` for an unknown name."""
    return http.find_model(request.query_params.get("model")).service


def _find_view(service: Service, request: Request, *more: str) -> _View:
    """The caller's view. Refuses query parameters other than `cache_salt`, `model` and `more`."""
    model = service.engine.check_serving()
    salt = _read_salt(request, *more)
    check_salt(salt)
    scope = cache_scope(request, service.config)
    own = cache_namespace(scope, salt, _find_adapter(service, request))

    def decode(tokens: Tokens) -> str:
        return service.tokenizer.decode(tokens, skip_special_tokens=False)

    is_shared = is_shared_by_keys(own) and service.config.has_several_keys
    return _View(model, scope, own, None if is_shared else decode)


def _read_salt(request: Request, *more: str) -> str | None:
    check_query(request, "cache_salt", "model", *more)
    return request.query_params.get("cache_salt")


def _find_adapter(service: Service, request: Request) -> Adapter | None:
    return service.find_adapter(request.query_params.get("model"))


def check_query(request: Request, *known: str) -> None:
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


async def ask_scheduler(
    service: Service,
    kind: type[Answer],
    question: Callable[[int], CacheControl],
    replica: int,
    param: str | None = None,
) -> Answer:
    """The answer of one replica's scheduler to a question. `param` is the field at fault if a refusal names
    none."""
    answer = await service.engine.ask(question, ANSWER_SECONDS, replica)
    return check_answer(kind, answer, param)


async def ask_schedulers(
    service: Service,
    kind: type[Answer],
    question: Callable[[int], CacheControl],
    seconds: float = ANSWER_SECONDS,
    param: str | None = None,
) -> dict[int, Answer]:
    """The answers of the schedulers of all replicas that are up, by the replica's number."""
    answers = await service.engine.ask_all(question, seconds)
    if not answers:
        check_answer(kind, None, param)
    return {replica: check_answer(kind, answer, param) for replica, answer in answers.items()}


def check_answer(kind: type[Answer], answer: AnyAnswer | None, param: str | None = None) -> Answer:
    """The answer, if it is of the kind. Otherwise raises a `RequestError`."""
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
