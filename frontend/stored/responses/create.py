"""POST /v1/responses."""

from __future__ import annotations

import logging
import time
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
from ...core.constraint import enforced_as_asked
from ...core.fields import SamplingFields
from ...core.leases import positions
from ...core.prepare import CheckedRequest, Limits, chat_of, namespace_of, prepare
from ...core.service import Service
from ...core.validation import check_count, check_declared, check_fields, check_word
from ...http.cache_watch import CacheWatch
from ...http.endpoint import IN_BACKGROUND, Job
from ...http.tenants import cache_scope, caller_of, owner_of, tenant_of
from .answers import Attempts, ResponseContext, without_excerpts
from .background import Background
from .context import Context, context_of, conversation_id
from .fields import RESPONSES
from .ids import new_id
from .prompt import Prompt, prompt_of
from .protocol import MOST_METADATA, Item, ReasoningConfig, ResponsesRequest, TextConfig, TextFormat
from .responses import ConversationId, Response
from .responses_service import ResponsesService, nothing_stored

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
"""the last six belong to tools and images that no response here has"""
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_SAME_NAMES = sorted({*ResponsesRequest.__struct_fields__} & {*SamplingFields.__struct_fields__})


async def prepare_response(responses: ResponsesService, http_request: Request) -> Job:
    """Raises `RequestError` for a request that can't be served."""
    http = responses.http
    service, config = http.service, http.service.config
    caller = caller_of(http_request, config)
    request = await http.bodies.read(http_request, caller, RESPONSES)
    service.check_model(request.model)
    model = service.engine.check_serving()
    stores = _stores(responses, request)
    if request.background and http_request.scope.get(IN_BACKGROUND):
        raise RequestError(
            "background is true, but a batch runs in the background anyway: leave background out.",
            param="background",
            code="invalid_value",
        )
    owner = owner_of(http_request.scope)
    fields = _sampling_fields(request)
    _check(request, fields)
    context = await context_of(responses, owner, request, caller)
    caller = context.caller
    valid = await service.work.call(caller, _valid, service, request, fields, context)
    namespace = namespace_of(fields, cache_scope(http_request, config))
    prompt = await service.encode_rendered(valid.text, False, namespace, caller, model.max_model_len, "input")
    chat, grammar = chat_of(service, valid.text, namespace, valid.grammar, valid.use, continues=False)
    places = await positions(service, valid.breakpoints, valid.text, prompt, namespace, caller)
    begun = _begun(service, request, model.sampling, stores=stores)
    checked = CheckedRequest(
        request_id=begun.id,
        fields=fields,
        limits=_limits(request),
        prompts=[prompt],
        namespace=namespace,
        tenant=tenant_of(http_request, request.user, config),
        grammar=grammar,
        logprobs=_logprobs(request),
        prompt_logprobs=None,
        chat=chat,
        outline=valid.outline,
        leases=cache_leases(request, places, by_default=stores),
    )
    facts = ResponseContext(
        begun=begun,
        called=valid.called,
        tokenizer=service.tokenizer,
        encodes=ENCRYPTED in (request.include or ()),
        prewarms=prewarms(request),
    )
    attempts = Attempts(facts, streams=bool(request.stream or request.background))
    job = Job(
        begun.id,
        prepare(service, checked),
        bool(request.stream),
        attempts.begin,
        attempts.error_event,
        bool(request.explain_cache),
    )
    if request.background:
        assert responses.background is not None, "a server that stores responses has it"
        start = partial(_start, responses.background, owner, begun, context.own, attempts)
        return replace(job, detached=start)
    if not stores:
        return job
    return replace(job, finished=partial(_store, responses, owner, attempts, context.own))


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
    job: Job,
    watch: CacheWatch,
    key: ApiKey | None,
) -> HttpResponse:
    """Starts a response in the background. Returns the answer to its request."""
    run = await background.start(owner, begun, items, job, attempts, watch, key)
    if run.job.streams:
        return StreamingResponse(run.follow(-1), headers=STREAM_HEADERS, media_type="text/event-stream")
    queued = msgspec.structs.replace(run.response, status="queued")
    return HttpResponse(msgspec.json.encode(queued), media_type="application/json")


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
            raise RequestError(
                "background is true, but with prompt_cache_options.prewarm and conversation the response is "
                "not stored: leave background out.",
                param="background",
                code="invalid_value",
            )
    return request.store is not False and responses.stored is not None and not prewarms_conversation


def _sampling_fields(request: ResponsesRequest) -> SamplingFields:
    return SamplingFields(**{name: getattr(request, name) for name in _SAME_NAMES})


def _check(request: ResponsesRequest, fields: SamplingFields) -> None:
    check_declared(request)
    check_count("metadata", request.metadata, MOST_METADATA, "entries")
    for index, each in enumerate(request.include or ()):
        check_word(f"include[{index}]", each, INCLUDABLE)
    if request.stream_options is not None and not request.stream:
        raise RequestError(
            "stream_options is only allowed when stream is true.",
            param="stream_options",
            code="invalid_value",
        )
    check_fields(fields)
    check_cache_fields(request)


def _valid(service: Service, request: ResponsesRequest, fields: SamplingFields, context: Context) -> Prompt:
    """Raises `RequestError` for a request that can't be served."""
    prompt = prompt_of(service, request, context.earlier, context.own)
    grammar = enforced_as_asked(prompt.grammar, fields, service.config)
    return prompt._replace(grammar=grammar)


def _limits(request: ResponsesRequest) -> Limits:
    if prewarms(request):
        return Limits(0, "prompt_cache_options.prewarm", "input")
    return Limits(request.max_output_tokens, "max_output_tokens", "input")


def _logprobs(request: ResponsesRequest) -> int | None:
    is_wanted = bool(request.top_logprobs) or LOGPROBS in (request.include or ())
    return (request.top_logprobs or 0) if is_wanted else None


def _begun(
    service: Service, request: ResponsesRequest, defaults: SamplingDefaults, *, stores: bool
) -> Response:
    """The response before its first output, with the request's fields or their defaults."""
    conversation = conversation_id(request)
    text = request.text or TextConfig()
    return Response(
        id=new_id("resp"),
        created_at=int(time.time()),
        status="in_progress",
        background=bool(request.background),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        model=service.config.served_model_name,
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
