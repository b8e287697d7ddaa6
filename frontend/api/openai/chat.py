"""POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from starlette.requests import Request

from ...core.attempts import StreamedAnswer, WholeAnswer
from ...core.conversation import tool_definitions
from ...core.draft import Beginning, Draft, Limits, Prompt
from ...core.messages import Conversation, template_variables
from ...core.prepare import Job, new_id
from ...core.reply import Reply
from ...core.service import Service
from ...core.tool_choice import calls_wanted, names_function
from ...core.validation import check_declared, check_range, count_alternatives
from ...http.body_kind import BodyKind
from ...http.endpoint import HttpAnswer, HttpJob, read_body
from ...http.http_service import HttpService
from .cache_fields import cache_leases, check_cache_fields, lease_seconds, messages_to_breakpoints, prewarms
from .chat_answers import ChatContext, ChatStream
from .chunks import ChunkWriter, Head
from .constraint import constraint
from .errors import error_event
from .fields import IN_CHATS, INERT, check_generation
from .protocol import ChatRequest, PromptFields

_BODY = BodyKind(ChatRequest, INERT, IN_CHATS, {"prompt": "/v1/completions"})


async def prepare_chat(http: HttpService, http_request: Request) -> HttpJob:
    """The job for a request. Raises `RequestError` if it can't be served."""
    incoming = await read_body(http, http_request, _BODY)
    incoming.http.service.check_model(incoming.body.model)
    job = await incoming.prepare(new_id("chatcmpl"), _read)
    return HttpJob(job, partial(_answer, incoming.body, _context(incoming.body, job)), error_event)


def _read(service: Service, request: ChatRequest) -> Draft:
    """The draft of a request. Raises `RequestError` if it can't be served."""
    _check(request)
    tools = tool_definitions(request.tools)
    conversation = replace(conversation_of(request), variables=_variables(request))
    ttl_s = lease_seconds(request)
    parts = [replace(conversation, messages=each) for each in messages_to_breakpoints(request)]
    return Draft(
        fields=request,
        prompt=Prompt(
            param="messages",
            conversation=conversation,
            tools=tools,
            beginnings=[Beginning(part, tools, ttl_s) for part in parts],
            special=bool(request.add_special_tokens),
        ),
        limits=_limits(request),
        is_chat=True,
        calls=calls_wanted(request.tool_choice, tools, request.parallel_tool_calls),
        constraint=constraint(request),
        logprobs=count_alternatives(request.logprobs, request.top_logprobs),
        prompt_logprobs=request.prompt_logprobs,
        leases=cache_leases(request),
        user=request.user,
        streams=bool(request.stream),
        prediction=_read_prediction(request),
        explains=bool(request.explain_cache),
        model=request.model,
    )


def _read_prediction(request: ChatRequest) -> str:
    content = "" if request.prediction is None else request.prediction.content
    return content if isinstance(content, str) else "".join(part.text or "" for part in content)


def conversation_of(request: ChatRequest | PromptFields) -> Conversation:
    return Conversation(
        request.messages or [],
        begins_reply=request.add_generation_prompt is not False,
        continues_last=bool(request.continue_final_message),
        variables=request.chat_template_kwargs or {},
    )


def _variables(request: ChatRequest) -> dict[str, object]:
    effort = request.reasoning_effort
    return template_variables(
        request.chat_template_kwargs,
        thinks=None if effort is None else effort != "none",
        effort=effort,
        verbosity=request.verbosity,
    )


def _check(request: ChatRequest) -> None:
    check_cache_fields(request)
    fewest = 1 if request.prompt_logprobs is None and not prewarms(request) else 0
    check_range("max_tokens", request.max_tokens, fewest, None)
    check_range("max_completion_tokens", request.max_completion_tokens, fewest, None)
    check_generation(request)
    if request.prediction is not None:
        check_declared(request.prediction, "prediction.")


def _limits(request: ChatRequest) -> Limits:
    """The limits of a reply. `max_completion_tokens`, the newer name of `max_tokens`, overrides it."""
    if prewarms(request):
        return Limits(0, "prompt_cache_options.prewarm")
    if request.max_completion_tokens is not None:
        return Limits(request.max_completion_tokens, "max_completion_tokens")
    return Limits(request.max_tokens, "max_tokens")


def _context(request: ChatRequest, job: Job) -> ChatContext:
    return ChatContext(
        head=Head.of(job),
        tokenizer=job.service.tokenizer,
        prompt=job.prompts[0],
        call_finish_reason="stop" if names_function(request.tool_choice) else "tool_calls",
        wants_logprobs=bool(request.logprobs),
        wants_prompt_logprobs=request.prompt_logprobs is not None,
        counts_reasoning=job.reasoning is not None,
        counts_prediction=request.prediction is not None,
        shows_reasoning=request.include_reasoning is not False,
        reasoning_field=job.service.config.reasoning_field,
    )


def _answer(request: ChatRequest, context: ChatContext, reply: Reply) -> HttpAnswer:
    if not request.stream:
        return WholeAnswer(reply, context.body)
    writer = ChunkWriter("chat.completion.chunk", context.head, request.stream_options)
    return StreamedAnswer(reply, ChatStream(context, reply, writer))
