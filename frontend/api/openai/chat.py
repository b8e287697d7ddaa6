"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from starlette.requests import Request

from ....runtime.errors import RequestError
from ....runtime.messages import GrammarSpec, Tokens
from ...core.constraint import enforced_as_asked
from ...core.conversation import Rendered, rendered, rendered_to, tool_definitions
from ...core.leases import Breakpoint, positions
from ...core.messages import Conversation
from ...core.prepare import Chat, CheckedRequest, Limits, chat_of, namespace_of, prepare
from ...core.reply import Reply
from ...core.requested_tools import ToolUse, tool_use
from ...core.service import Service
from ...core.tool_choice import calls_wanted, names_function
from ...core.validation import check_choices, check_range
from ...http.body_kind import BodyKind
from ...http.endpoint import Job
from ...http.http_service import HttpService
from ...http.tenants import cache_scope, caller_of, tenant_of
from .binding_fields import IN_CHATS
from .cache_fields import breakpoints, cache_leases, check_cache_fields, messages_to_breakpoints, prewarms
from .chat_answers import ChatContext, ChatStream, ChatWhole
from .checks import check_generation
from .chunks import ChunkWriter, Head
from .constraint import constraint
from .errors import error_event
from .fixed_fields import INERT_FIELDS
from .protocol import ChatRequest, PromptFields

_BODY = BodyKind(ChatRequest, INERT_FIELDS, IN_CHATS, {"prompt": "/v1/completions"})


async def prepare_chat(http: HttpService, http_request: Request) -> Job:
    """Raises `RequestError` for a request that can't be served."""
    service = http.service
    caller = caller_of(http_request, service.config)
    request = await http.bodies.read(http_request, caller, _BODY)
    service.check_model(request.model)
    model = service.engine.check_serving()
    renderer = caller.with_messages(len(request.messages))
    valid = await service.work.call(renderer, _valid, service, request)
    namespace = namespace_of(request, cache_scope(http_request, service.config))
    special = bool(request.add_special_tokens)
    prompt = await service.encode_rendered(
        valid.prompt.text, special, namespace, caller, model.max_model_len, "messages"
    )
    continues = bool(request.continue_final_message)
    chat, grammar = chat_of(
        service,
        valid.prompt.text,
        namespace,
        valid.grammar,
        valid.use,
        continues=continues,
    )
    places = await positions(service, valid.breakpoints, valid.prompt.text, prompt, namespace, caller)
    head = Head.new("chatcmpl", service)
    checked = CheckedRequest(
        request_id=head.id,
        fields=request,
        limits=_limits(request),
        prompts=[prompt],
        namespace=namespace,
        tenant=tenant_of(http_request, request.user, service.config),
        grammar=grammar,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.prompt_logprobs,
        chat=chat,
        outline=valid.prompt.outline,
        leases=cache_leases(request, places),
    )
    context = _context(service, request, head, prompt, chat)
    return Job(
        head.id,
        prepare(service, checked),
        bool(request.stream),
        partial(_answer, request, context),
        error_event,
        bool(request.explain_cache),
    )


def conversation_of(request: ChatRequest | PromptFields) -> Conversation:
    variables = dict(request.chat_template_kwargs or {})
    if isinstance(request, ChatRequest) and request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
        variables.setdefault("enable_thinking", request.reasoning_effort != "none")
    if isinstance(request, ChatRequest) and request.verbosity is not None:
        variables.setdefault("verbosity", request.verbosity)
    return Conversation(
        request.messages or [],
        begins_reply=request.add_generation_prompt is not False,
        continues_last=bool(request.continue_final_message),
        variables=variables,
    )


class _Valid(NamedTuple):
    """The checked parts of a request."""

    use: ToolUse
    grammar: GrammarSpec | None
    prompt: Rendered
    breakpoints: Sequence[Breakpoint]


def _valid(service: Service, request: ChatRequest) -> _Valid:
    """Raises `RequestError` for a request that can't be served."""
    _check(request)
    check_choices(1, request.n or 1, service.config.max_waiting)
    asked = constraint(request)
    tools: list[dict[str, Any]] | None = tool_definitions(request.tools)
    use = ToolUse("none", service.tool_format)
    if tools or request.tool_choice is not None:
        wanted = calls_wanted(request.tool_choice, tools, request.parallel_tool_calls)
        use = tool_use(wanted, service.tool_format, asked)
    grammar = enforced_as_asked(use.grammar or asked, request, service.config)
    conversation = conversation_of(request)
    parts = [replace(conversation, messages=each) for each in messages_to_breakpoints(request)]
    whole = rendered(service.template, conversation, tools)
    texts = [rendered_to(service.template, part, tools, whole.form) for part in parts]
    marked = breakpoints([each for each in texts if each is not None], request)
    return _Valid(use, grammar, whole, marked)


def _check(request: ChatRequest) -> None:
    check_cache_fields(request)
    fewest = 1 if request.prompt_logprobs is None and not prewarms(request) else 0
    check_range("max_tokens", request.max_tokens, fewest, None)
    check_range("max_completion_tokens", request.max_completion_tokens, fewest, None)
    check_generation(request)
    if request.top_logprobs and not request.logprobs:
        raise RequestError(
            f"top_logprobs is {request.top_logprobs}, but is only allowed when logprobs is true.",
            param="top_logprobs",
            code="invalid_value",
        )


def _limits(request: ChatRequest) -> Limits:
    """`max_completion_tokens` is the newer name of `max_tokens` and overrides it."""
    if prewarms(request):
        return Limits(0, "prompt_cache_options.prewarm", "messages")
    if request.max_completion_tokens is not None:
        return Limits(request.max_completion_tokens, "max_completion_tokens", "messages")
    return Limits(request.max_tokens, "max_tokens", "messages")


def _context(service: Service, request: ChatRequest, head: Head, prompt: Tokens, chat: Chat) -> ChatContext:
    return ChatContext(
        head=head,
        tokenizer=service.tokenizer,
        prompt=prompt,
        call_finish_reason="stop" if names_function(request.tool_choice) else "tool_calls",
        wants_logprobs=bool(request.logprobs),
        wants_prompt_logprobs=request.prompt_logprobs is not None,
        counts_reasoning=chat.reasoning is not None,
        shows_reasoning=request.include_reasoning is not False,
        reasoning_field=service.config.reasoning_field,
    )


def _answer(request: ChatRequest, context: ChatContext, reply: Reply) -> ChatStream | ChatWhole:
    if not request.stream:
        return ChatWhole(context, reply)
    writer = ChunkWriter("chat.completion.chunk", context.head, request.stream_options)
    return ChatStream(context, reply, writer)
