"""POST /cache/explain: why a prompt's tokens are not in the cache, without computing them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive

from .anthropic.messages import prepare_message
from .http.cache_watch import CacheWatch
from .http.endpoint import Job
from .http.faces import ANSWER_ID
from .http.http_service import HttpService
from .http.tenants import caller_of
from .openai.chat import prepare_chat
from .openai.completions import prepare_completion

_ANTHROPIC = b"anthropic-version"
_ABSENT = Raw(b"null")


class _Body(Struct):
    """The fields that tell the three kinds of bodies apart."""

    prompt: Raw = _ABSENT
    system: Raw = _ABSENT


_decoder = msgspec.json.Decoder(_Body)


async def explain_prompt(http: HttpService, request: Request) -> Response:
    """Takes the body of a chat, a completion or one of Anthropic's messages."""
    caller = caller_of(request, http.service.config)
    body = await http.bodies.raw(request, caller)
    prepare = await http.service.work.call(caller, _kind, request, body)
    scope = {ANSWER_ID: "", **request.scope}
    job = await prepare(http, Request(scope, _replayed(body, request.receive)))
    watch = await CacheWatch.begin(http, job.prepared, request.scope, explains=False)
    explanation = await watch.explanation(await watch.ask_tree())
    return Response(msgspec.json.encode(explanation), media_type="application/json")


def _kind(request: Request, body: bytes) -> Callable[[HttpService, Request], Awaitable[Job]]:
    """The function that reads the body: Anthropic's for its header or a system prompt of its own."""
    try:
        found = _decoder.decode(body)
    except msgspec.DecodeError:  # `prepare_chat` says what is wrong
        found = _Body()
    if bytes(found.system) != b"null" or any(name == _ANTHROPIC for name, _ in request.headers.raw):
        return prepare_message
    return prepare_chat if bytes(found.prompt) == b"null" else prepare_completion


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A channel that has the body again, and then what follows it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message
