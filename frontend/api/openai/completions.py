"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request

from ....runtime.messages import ModelReady
from ...core.attempts import StreamedAnswer, WholeAnswer
from ...core.draft import Draft, Limits, Prompt
from ...core.prepare import Job, new_id
from ...core.reply import Reply
from ...core.service import Service
from ...core.validation import invalid_field
from ...core.work.thread_pool import run_now
from ...http.body_kind import BodyKind
from ...http.endpoint import HttpAnswer, HttpJob, Incoming, read_body
from ...http.http_service import HttpService
from .cache_fields import cache_leases, check_cache_fields, prewarms
from .chunks import ChunkWriter, Head
from .completion_answers import STEP_TOKENS, CompletionContext, CompletionStream, EchoedPrompt, echo_prompts
from .constraint import constraint
from .errors import error_event
from .fields import IN_COMPLETIONS, INERT, check_generation
from .protocol import CompletionRequest

DEFAULT_MAX_TOKENS = 16

_BODY = BodyKind(CompletionRequest, INERT, IN_COMPLETIONS, {"messages": "/v1/chat/completions"})


async def prepare_completion(http: HttpService, http_request: Request) -> HttpJob:
    """The job for a request. Raises `RequestError` if it can't be served."""
    incoming = await read_body(http, http_request, _BODY)
    incoming.http.service.check_model(incoming.body.model)
    job = await incoming.prepare(new_id("cmpl"), _read)
    echoed = await _echo(incoming, job) if incoming.body.echo else ()
    context = _context(incoming.body, job, echoed)
    return HttpJob(job, partial(_answer, incoming.body, context), error_event)


def _read(service: Service, request: CompletionRequest) -> Draft:
    """The draft of a request. Raises `RequestError` if it can't be served."""
    check_generation(request)
    check_cache_fields(request)
    special = request.add_special_tokens is not False
    return Draft(
        fields=request,
        prompt=Prompt(param="prompt", items=read_items(request.prompt, "prompt"), special=special),
        limits=_limits(request, service.engine.check_serving()),
        constraint=constraint(request),
        logprobs=request.logprobs,
        prompt_logprobs=_prompt_logprobs(request),
        leases=cache_leases(request),
        user=request.user,
        streams=bool(request.stream),
        explains=bool(request.explain_cache),
        model=request.model,
    )


async def _echo(incoming: Incoming[CompletionRequest], job: Job) -> Sequence[EchoedPrompt]:
    """The prompts as their choices echo them. Many tokens are decoded in steps on another thread."""
    items, wants_logprobs = job.draft.prompt.items, incoming.body.logprobs is not None
    steps = echo_prompts(job.service.tokenizer, items, job.prompts, wants_logprobs)
    is_long = job.prompt_tokens > STEP_TOKENS
    return await job.service.work.run(incoming.caller, steps) if is_long else run_now(steps)


def _context(request: CompletionRequest, job: Job, echoed: Sequence[EchoedPrompt]) -> CompletionContext:
    return CompletionContext(
        head=Head.of(job),
        tokenizer=job.service.tokenizer,
        prompts=job.prompts,
        echoed=echoed,
        choices=job.choices,
        wants_logprobs=request.logprobs is not None,
        wants_prompt_logprobs=request.prompt_logprobs is not None,
    )


def _answer(request: CompletionRequest, context: CompletionContext, reply: Reply) -> HttpAnswer:
    if not request.stream:
        return WholeAnswer(reply, context.body)
    writer = ChunkWriter("text_completion", context.head, request.stream_options)
    return StreamedAnswer(reply, CompletionStream(context, reply, writer))


def _limits(request: CompletionRequest, model: ModelReady) -> Limits:
    if prewarms(request):
        return Limits(0, "prompt_cache_options.prewarm")
    default = min(DEFAULT_MAX_TOKENS, model.max_model_len)
    return Limits(default if request.max_tokens is None else request.max_tokens, "max_tokens")


def _prompt_logprobs(request: CompletionRequest) -> int | None:
    """The number of alternatives per prompt token. An echoed prompt has at least the reply's number."""
    if request.echo and request.logprobs is not None:
        return max(request.logprobs, request.prompt_logprobs or 0)
    return request.prompt_logprobs


def read_items(given: str | Sequence[str | int | list[int]], param: str) -> Sequence[str | list[int]]:
    """The items of the field `param`: a text, a list of ids, or a list of either. Else raises
    `RequestError`."""
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    if ids and len(ids) < len(given):
        raise invalid_field(param, "mixes token ids with texts or lists; give one kind", "invalid_type")
    items = [ids] if ids else [item for item in given if not isinstance(item, int)]
    if not items:
        raise invalid_field(param, "must not be empty: it has no texts and no tokens")
    return items
