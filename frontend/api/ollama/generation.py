"""POST /api/chat and /api/generate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from ...core.draft import Draft
from ...core.leases import end_kept_alive, end_lease, keep_alive_lease
from ...core.prepare import Job, cache_namespace, new_id
from ...core.service import Service
from ...core.validation import check_salt
from ...http.apis import json_response
from ...http.body_kind import BodyKind
from ...http.endpoint import HttpJob, read_body
from ...http.http_service import HttpService
from ...http.tenants import cache_scope, tenant_of
from .answers import AnswerContext, LineAnswer, error_line, now
from .fields import IN_CHATS, IN_PROMPTS, INERT
from .keep_alive import conversation_key, keep_alive_seconds, keep_model
from .models import checked_name, find_name
from .prompt import read_chat, read_generate
from .protocol import ChatRequest, GenerateRequest, PromptRequest
from .responses import Answer, ReplyMessage

LINES = b"application/x-ndjson"

_CHAT = BodyKind(ChatRequest, INERT, IN_CHATS)
_GENERATE = BodyKind(GenerateRequest, INERT, IN_PROMPTS, {"messages": "/api/chat"})
R = TypeVar("R", ChatRequest, GenerateRequest)


async def prepare_chat(http: HttpService, http_request: Request) -> HttpJob | Response:
    """The job for a request, or its answer without a job. Raises `RequestError` if it can't be served."""
    return await _prepare(http, http_request, _CHAT, read_chat, lambda request: not request.messages)


async def prepare_generate(http: HttpService, http_request: Request) -> HttpJob | Response:
    """The job for a request, or its answer without a job. Raises `RequestError` if it can't be served."""
    return await _prepare(http, http_request, _GENERATE, read_generate, lambda request: not request.prompt)


async def _prepare(
    http: HttpService,
    http_request: Request,
    kind: BodyKind[R],
    read: Callable[[Service, R], Draft],
    is_empty: Callable[[R], bool],
) -> HttpJob | Response:
    arrived = time.monotonic_ns()

    def unloads(request: R) -> bool:
        return is_empty(request) and keep_alive_seconds(request.keep_alive) == 0

    incoming = await read_body(http, http_request, kind, lambda request: not unloads(request))
    http, service, request = incoming.http, incoming.http.service, incoming.body
    name = checked_name(service, request.model)
    seconds = keep_alive_seconds(request.keep_alive)
    is_shared = service.config.has_several_keys
    keep_model(http_request, seconds, is_shared=is_shared)
    if not unloads(request) or service.engine.use is None:
        service.engine.check_serving()
    if is_empty(request):
        if seconds == 0:
            _unload(http, http_request, request)
            if service.engine.use is not None and not is_shared:
                service.engine.use.unload_if_idle()
        return _answer_empty_prompt(name, is_chat=isinstance(request, ChatRequest), keep_alive=seconds)
    key = "" if seconds is None else await service.work.call(incoming.caller, conversation_key, request)
    leases = [keep_alive_lease(seconds, key)] if seconds else []
    job = await incoming.prepare(
        new_id("ollama"), lambda service, request: replace(read(service, request), leases=leases)
    )
    context = AnswerContext(
        model=name,
        is_chat=isinstance(request, ChatRequest),
        shows_thinking=request.think is not False,
        wants_logprobs=bool(request.logprobs),
        wants_top=request.top_logprobs is not None,
        tokenizer=service.tokenizer,
        arrived=arrived,
        prepared=time.monotonic_ns(),
    )
    answer = partial(LineAnswer, context, streams=job.draft.streams)
    answered = HttpJob(job, answer, error_line, stream_type=LINES)
    return replace(answered, finished=partial(_end_leases, job, key)) if seconds == 0 else answered


async def _end_leases(job: Job, key: str, last: bytes) -> bytes:
    """Ends the conversation's leases after its reply, which has used their pages. Returns the `last` part of
    the answer unchanged."""
    first = job.requests[0]
    end_lease(job.service.engine, first.namespace, first.tenant, key)
    return last


def _unload(http: HttpService, http_request: Request, request: PromptRequest) -> None:
    """Ends all leases of the tenant with this salt, because Ollama would free the cache of all conversations
    with the model."""
    config = http.service.config
    check_salt(request.cache_salt)
    adapter = http.service.find_adapter(find_name(http.service, request.model))
    namespace = cache_namespace(cache_scope(http_request, config), request.cache_salt, adapter)
    end_kept_alive(http.service.engine, namespace, tenant_of(http_request, None, config))


def _answer_empty_prompt(name: str, *, is_chat: bool, keep_alive: float | None) -> Response:
    """The answer to an empty prompt, which asks to load the model, or with `keep_alive` 0 to unload it."""
    answer = Answer(
        model=name,
        created_at=now(),
        message=ReplyMessage(content="") if is_chat else UNSET,
        response=UNSET if is_chat else "",
        done=True,
        done_reason="unload" if keep_alive == 0 else "load",
    )
    return json_response(answer)
