"""POST /api/chat and /api/generate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from ....runtime.messages import LeaseTerms, ModelReady
from ...core.leases import end_kept_alive, end_lease, keep_alive_lease
from ...core.prepare import (
    Chat,
    CheckedRequest,
    cache_namespace,
    chat_of,
    namespace_of,
    new_id,
    prepare,
)
from ...core.reply import Reply
from ...core.service import Service
from ...core.validation import check_salt
from ...http.body_kind import BodyKind
from ...http.endpoint import Job
from ...http.http_service import HttpService
from ...http.tenants import cache_scope, caller_of, tenant_of
from .answers import AnswerContext, LineStream, WholeAnswer, now
from .errors import error_line
from .fields import IN_CHATS, IN_PROMPTS, INERT_FIELDS
from .keep_alive import conversation_key, keep_alive_seconds
from .names import checked_name
from .options import limits
from .prompt import Prompt, chat_prompt, generate_prompt
from .protocol import ChatRequest, GenerateRequest, PromptRequest
from .responses import Answer, ReplyMessage

LINES = b"application/x-ndjson"

_CHAT = BodyKind(ChatRequest, INERT_FIELDS, IN_CHATS)
_GENERATE = BodyKind(GenerateRequest, INERT_FIELDS, IN_PROMPTS, {"messages": "/api/chat"})
R = TypeVar("R", ChatRequest, GenerateRequest)


async def prepare_chat(http: HttpService, http_request: Request) -> Job | Response:
    """Raises `RequestError` for a request that can't be served."""
    return await _prepared(http, http_request, _CHAT, chat_prompt, lambda request: not request.messages)


async def prepare_generate(http: HttpService, http_request: Request) -> Job | Response:
    """Raises `RequestError` for a request that can't be served."""
    return await _prepared(http, http_request, _GENERATE, generate_prompt, lambda request: not request.prompt)


async def _prepared(
    http: HttpService,
    http_request: Request,
    kind: BodyKind[R],
    prompt_of: Callable[[Service, R], Prompt],
    is_empty: Callable[[R], bool],
) -> Job | Response:
    arrived = time.monotonic_ns()
    service = http.service
    caller = caller_of(http_request, service.config)
    request = await http.bodies.read(http_request, caller, kind)
    name = checked_name(service, request.model)
    seconds = keep_alive_seconds(request.keep_alive)
    model = service.engine.check_serving()
    is_chat = isinstance(request, ChatRequest)
    if is_empty(request):
        if seconds == 0:
            _unload(http, http_request, request)
        return _loaded(name, is_chat=is_chat, keep_alive=seconds)
    renderer = caller.with_messages(len(request.messages or ()) if isinstance(request, ChatRequest) else 1)
    prompt = await service.work.call(renderer, prompt_of, service, request)
    key = "" if seconds is None else await service.work.call(caller, conversation_key, request)
    leases = [keep_alive_lease(seconds, key)] if seconds else []
    checked = await _checked(http, http_request, request, prompt, model, leases)
    prepared = prepare(service, checked)
    context = AnswerContext(
        model=name,
        is_chat=is_chat,
        shows_thinking=request.think is not False,
        wants_logprobs=bool(request.logprobs),
        wants_top=request.top_logprobs is not None,
        tokenizer=service.tokenizer,
        arrived=arrived,
        prepared=time.monotonic_ns(),
    )
    streams = request.stream is not False
    answer = partial(_answer, streams, context)
    job = Job(
        checked.request_id,
        prepared,
        streams,
        answer,
        error_line,
        bool(request.explain_cache),
        stream_type=LINES,
    )
    return replace(job, finished=partial(_unleased, service, checked, key)) if seconds == 0 else job


async def _checked(
    http: HttpService,
    http_request: Request,
    request: PromptRequest,
    prompt: Prompt,
    model: ModelReady,
    leases: Sequence[LeaseTerms],
) -> CheckedRequest:
    service = http.service
    caller = caller_of(http_request, service.config)
    namespace = namespace_of(prompt.fields, cache_scope(http_request, service.config))
    param, most = "messages" if isinstance(request, ChatRequest) else "prompt", model.max_model_len
    chat: Chat | None = None
    grammar = prompt.grammar
    if prompt.is_raw:
        tokens = await service.encode(prompt.text, True, caller, most, param)
    else:
        tokens = await service.encode_rendered(prompt.text, False, namespace, caller, most, param)
        chat, grammar = chat_of(
            service, prompt.text, namespace, grammar, prompt.use, continues=prompt.continues
        )
    return CheckedRequest(
        request_id=new_id("ollama"),
        fields=prompt.fields,
        limits=limits(request, model, len(tokens) // 4, param),
        prompts=[tokens],
        namespace=namespace,
        tenant=tenant_of(http_request, None, service.config),
        grammar=grammar,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=None,
        chat=chat,
        outline=prompt.outline,
        leases=leases,
    )


async def _unleased(service: Service, checked: CheckedRequest, key: str, last: bytes) -> bytes:
    """Ends the conversation's leases after its reply, which has used their pages. Returns the `last` part of
    the answer unchanged."""
    end_lease(service.engine, checked.namespace, checked.tenant, key)
    return last


def _unload(http: HttpService, http_request: Request, request: PromptRequest) -> None:
    """Ends all leases of the tenant with this salt, because Ollama would free the cache of all conversations
    with the model."""
    config = http.service.config
    check_salt(request.cache_salt)
    namespace = cache_namespace(cache_scope(http_request, config), request.cache_salt)
    end_kept_alive(http.service.engine, namespace, tenant_of(http_request, None, config))


def _loaded(name: str, *, is_chat: bool, keep_alive: float | None) -> Response:
    """The answer to an empty prompt, which asks to load the model, or with `keep_alive` 0 to unload it."""
    answer = Answer(
        model=name,
        created_at=now(),
        message=ReplyMessage(content="") if is_chat else UNSET,
        response=UNSET if is_chat else "",
        done=True,
        done_reason="unload" if keep_alive == 0 else "load",
    )
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _answer(streams: bool, context: AnswerContext, reply: Reply) -> LineStream | WholeAnswer:
    return LineStream(context, reply) if streams else WholeAnswer(context, reply)
