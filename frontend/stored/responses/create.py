"""POST /v1/responses, and the count of the tokens of its prompt."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.responses import StreamingResponse

from ....runtime.api_keys import ApiKey
from ....runtime.errors import RequestError
from ....runtime.sampling_params import SamplingDefaults
from ...api.openai.cache_fields import cache_leases, check_cache_fields, prewarms
from ...core.draft import Draft, Limits, Prompt
from ...core.fields import SamplingFields
from ...core.prepare import Job
from ...core.requested_tools import tool_use
from ...core.service import Service
from ...core.validation import check_count, check_declared, check_fields, check_word, invalid_field
from ...http.apis import json_response
from ...http.cache_miss_tracker import CacheMissTracker
from ...http.endpoint import IN_BACKGROUND, HttpJob, read_body
from ...http.tenants import owner_of
from ...http.time_limit import TimeLimit
from ..stored_request import MAX_METADATA, StoredRequest
from .answers import Attempts, ResponseContext, without_excerpts
from .background import Background
from .context import Context, context_of, conversation_id
from .fields import PROMPTS, RESPONSES
from .prompt import read_constraint, read_prompt
from .protocol import (
    Item,
    PromptFields,
    ReasoningConfig,
    ResponsesRequest,
    TextConfig,
    TextFormat,
    new_id,
)
from .responses import ConversationId, Response, TokensCount
from .responses_service import ResponsesService, nothing_stored
from .tools import offered_tools

log = logging.getLogger(__name__)

ENCRYPTED, LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"
INCLUDABLE = (
    ENCRYPTED,
    LOGPROBS,
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""Values of `include`. The last six belong to tools and images, which no response here has."""
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def prepare_response(responses: ResponsesService, http_request: Request) -> HttpJob:
    """The job for a request. Raises `RequestError` if it can't be served."""
    incoming = await read_body(responses.http, http_request, RESPONSES)
    service = incoming.http.service
    request = incoming.body
    service.check_model(request.model)
    model = service.engine.check_serving()
    stores = _stores(responses, request)
    if request.background and http_request.scope.get(IN_BACKGROUND):
        raise invalid_field(
            "background", "is true, but a batch runs in the background anyway: leave background out"
        )
    owner = owner_of(http_request.scope)
    fields = SamplingFields.copy_from(request)
    _check(request, fields)
    context = await context_of(responses, owner, request, incoming.caller)
    incoming = replace(incoming, caller=context.caller)
    job = await incoming.prepare(new_id("resp"), partial(_read, fields, context, stores))
    begun = _begun(job, request, model.sampling, stores=stores)
    facts = ResponseContext(
        begun=begun,
        called=offered_tools(request.tools).called,
        tokenizer=service.tokenizer,
        encodes=ENCRYPTED in (request.include or ()),
        prewarms=prewarms(request),
    )
    attempts = Attempts(facts, streams=job.draft.streams or bool(request.background))
    answered = HttpJob(job, attempts.begin, attempts.error_event)
    if request.background:
        assert responses.background is not None, "a server that stores responses has it"
        start = partial(_start, responses.background, owner, begun, context.own, attempts)
        return replace(answered, detached=start)
    if not stores:
        return answered
    return replace(answered, finished=partial(_store, responses, owner, attempts, context.own))


async def count_tokens(counted: StoredRequest[ResponsesService]) -> TokensCount:
    """Counts the tokens of the prompt that /v1/responses would render from the same fields."""
    responses = counted.service
    incoming = await read_body(responses.http, counted.http_request, PROMPTS)
    request = incoming.body
    incoming.http.service.check_model(request.model)
    context = await context_of(responses, counted.owner, request, incoming.caller)
    incoming = replace(incoming, caller=context.caller)
    tokens = await incoming.tokenize(partial(_read_prompt, context), request.cache_salt)
    return TokensCount(input_tokens=len(tokens) // 4)


def _read_prompt(context: Context, service: Service, request: PromptFields) -> Prompt:
    prompt, calls = read_prompt(service, request, context.earlier, context.own)
    tool_use(calls, service.tool_format, read_constraint(request))  # raises an error for wrong tools
    return prompt


def _read(
    fields: SamplingFields, context: Context, stores: bool, service: Service, request: ResponsesRequest
) -> Draft:
    """The draft of a request. Raises `RequestError` if it can't be served."""
    prompt, calls = read_prompt(service, request, context.earlier, context.own)
    return Draft(
        fields=fields,
        prompt=prompt,
        limits=_limits(request),
        is_chat=True,
        calls=calls,
        constraint=read_constraint(request),
        logprobs=_logprobs(request),
        leases=cache_leases(request, by_default=stores),
        user=request.user,
        streams=bool(request.stream),
        explains=bool(request.explain_cache),
        model=request.model,
    )


async def _store(
    responses: ResponsesService, owner: str, attempts: Attempts, items: Sequence[Item], last: bytes
) -> bytes:
    """Stores the response. Returns the `last` part of its answer, which says so if it can't be stored."""
    final = attempts.final
    assert final is not None, "the reply has ended"
    try:
        await responses.store().add(owner, without_excerpts(final), items)
    except RequestError as error:
        if error.status not in (503, 507):
            raise
        log.error("the response %s is not stored: %s", final.id, error)
        return attempts.closing_instead(msgspec.structs.replace(final, store=False))
    return last


async def _start(
    background: Background,
    owner: str,
    begun: Response,
    items: Sequence[Item],
    attempts: Attempts,
    job: HttpJob,
    watch: CacheMissTracker,
    key: ApiKey | None,
    limit: TimeLimit,
) -> HttpResponse:
    """Starts a response in the background. Returns the answer to its request."""
    run = await background.start(owner, begun, items, job, attempts, watch, key, limit)
    if job.streams:
        return StreamingResponse(run.follow(-1), headers=STREAM_HEADERS, media_type="text/event-stream")
    queued = msgspec.structs.replace(run.response, status="queued")
    return json_response(queued)


def _stores(responses: ResponsesService, request: ResponsesRequest) -> bool:
    """Whether the response will be stored. Without `store` it is, if the server stores responses.

    Storing it also adds its input to its conversation. The input of a prewarm must not be there, because the
    request that follows adds it.
    """
    prewarms_conversation = prewarms(request) and conversation_id(request) is not None
    if request.background:
        if responses.stored is None:
            raise nothing_stored("background")
        if request.store is False:
            raise RequestError(
                "background is true, but store is false: a background response is stored, so that it can be "
                "fetched. Leave store out.",
                param="store",
                code="invalid_value",
            )
        if prewarms_conversation:
            raise invalid_field(
                "background",
                "is true, but with prompt_cache_options.prewarm and conversation the response is "
                "not stored: leave background out",
            )
    return request.store is not False and responses.stored is not None and not prewarms_conversation


def _check(request: ResponsesRequest, fields: SamplingFields) -> None:
    check_declared(request)
    check_count("metadata", request.metadata, MAX_METADATA, "entries")
    for index, each in enumerate(request.include or ()):
        check_word(f"include[{index}]", each, INCLUDABLE)
    if request.stream_options is not None and not request.stream:
        raise invalid_field("stream_options", "is only allowed when stream is true")
    check_fields(fields)
    check_cache_fields(request)


def _limits(request: ResponsesRequest) -> Limits:
    if prewarms(request):
        return Limits(0, "prompt_cache_options.prewarm")
    return Limits(request.max_output_tokens, "max_output_tokens")


def _logprobs(request: ResponsesRequest) -> int | None:
    is_wanted = bool(request.top_logprobs) or LOGPROBS in (request.include or ())
    return (request.top_logprobs or 0) if is_wanted else None


def _begun(job: Job, request: ResponsesRequest, defaults: SamplingDefaults, *, stores: bool) -> Response:
    """The response before its first output, with the request's fields or their defaults."""
    conversation = conversation_id(request)
    text = request.text or TextConfig()
    return Response(
        id=job.id,
        created_at=job.created,
        status="in_progress",
        background=bool(request.background),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        model=job.model,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        conversation=None if conversation is None else ConversationId(conversation),
        reasoning=request.reasoning or ReasoningConfig(),
        store=stores,
        temperature=defaults.temperature if request.temperature is None else request.temperature,
        text=TextConfig(format=text.format or TextFormat(type="text"), verbosity=text.verbosity),
        tool_choice=request.tool_choice or "auto",
        tools=request.tools or [],
        top_logprobs=request.top_logprobs or 0,
        top_p=defaults.top_p if request.top_p is None else request.top_p,
        user=request.user,
        metadata=request.metadata or {},
    )
