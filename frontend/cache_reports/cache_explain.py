"""POST /cache/explain: why a prompt's tokens are not in the cache, without computing them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive

from ...runtime.errors import RequestError
from ..http.apis import ANSWER_ID, Api, json_response
from ..http.cache_miss_tracker import CacheMissTracker
from ..http.endpoint import GenerationEndpoint, HttpJob
from ..http.http_service import HttpService
from ..http.outcome import MODEL_HOLD
from ..http.tenants import caller_of, owner_of

_ANTHROPIC = b"anthropic-version"
_NULL = Raw(b"null")
_CHATS, _MESSAGES = "/v1/chat/completions", "/v1/messages"
_OWN_FIELDS = {
    "/v1/responses": ("input", "previous_response_id", "conversation"),
    "/generate": ("prompt_token_ids",),
    "/v1/completions": ("prompt",),
}
"""by path: the body's fields that a body of chat completions lacks"""
PATHS = (_CHATS, _MESSAGES, *_OWN_FIELDS)
"""The paths whose bodies can be explained."""
_decoder = msgspec.json.Decoder(dict[str, Raw])


def generation_endpoints(routes: Iterable[tuple[Api, Route]]) -> dict[str, GenerationEndpoint]:
    """The endpoints that generate, by their paths."""
    return {
        route.path: route.endpoint for _, route in routes if isinstance(route.endpoint, GenerationEndpoint)
    }


async def explain_prompt(
    endpoints: Mapping[str, GenerationEndpoint], http: HttpService, request: Request
) -> Response:
    """Explains the prompt of a body for one of the `endpoints`, which prepares it as usual."""
    caller = caller_of(request, http.service.config)
    body = await http.bodies.raw(request, caller)
    path = await http.service.work.call(caller, _find_path, request, body)
    scope = {ANSWER_ID: "", **request.scope}
    try:
        job = await endpoints[path].prepare(http, Request(scope, _replay(body, request.receive)))
    finally:
        request.scope[MODEL_HOLD] = scope.get(MODEL_HOLD)  # ends with the request
    assert isinstance(job, HttpJob), "each of these bodies has a prompt"
    tracker = CacheMissTracker(http.of(job.job.service), owner_of(request.scope), job.job, explains=False)
    return json_response(await tracker.explain_messages())


def _find_path(request: Request, body: bytes) -> str:
    """The path of the API in whose form the body is. The query or the header of Anthropic's clients names it;
    otherwise the body's fields tell. Raises `RequestError` if two paths fit."""
    if (named := request.query_params.get("path")) is not None:
        if named not in PATHS:
            raise _wrong_path(f"path is {named!r}, but must be one of {', '.join(PATHS)}.")
        return named
    if any(name == _ANTHROPIC for name, _ in request.headers.raw):
        return _MESSAGES
    try:
        sent = {name for name, value in _decoder.decode(body).items() if value != _NULL}
    except msgspec.DecodeError:  # the endpoint for chats will say what is wrong
        sent = set()
    if {"messages", "system"} <= sent:
        raise _wrong_path(
            f"The body has messages and system, but {_CHATS} ignores system: send the request to "
            f"/cache/explain?path={_MESSAGES}, or leave system out."
        )
    if "messages" in sent:
        return _CHATS
    return next((path for path, names in _OWN_FIELDS.items() if not sent.isdisjoint(names)), _CHATS)


def _wrong_path(message: str) -> RequestError:
    return RequestError(message, param="path", code="invalid_value")


def _replay(body: bytes, receive: Receive) -> Receive:
    """An ASGI channel that returns the body again, and then the messages after it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message
