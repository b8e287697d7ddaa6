"""POST /v1/completions."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from starlette.requests import Request

from ....runtime.errors import RequestError
from ....runtime.messages import GrammarSpec, ModelReady
from ...core.constraint import enforced_as_asked
from ...core.prepare import CheckedRequest, Limits, namespace_of, prepare
from ...core.reply import Reply
from ...core.service import Service
from ...core.validation import check_choices, check_token_ids
from ...core.work.caller import Caller
from ...http.body_kind import BodyKind
from ...http.endpoint import Job
from ...http.http_service import HttpService
from ...http.tenants import cache_scope, caller_of, tenant_of
from .binding_fields import IN_COMPLETIONS
from .cache_fields import cache_leases, check_cache_fields, prewarms
from .checks import check_generation
from .chunks import ChunkWriter, Head
from .completion_answers import CompletionContext, CompletionStream, CompletionWhole, Prompt
from .constraint import constraint
from .errors import error_event
from .fixed_fields import INERT_FIELDS
from .protocol import CompletionRequest

DEFAULT_MAX_TOKENS = 16

_BODY = BodyKind(CompletionRequest, INERT_FIELDS, IN_COMPLETIONS, {"messages": "/v1/chat/completions"})


async def prepare_completion(http: HttpService, http_request: Request) -> Job:
    """Raises `RequestError` for a request that can't be served."""
    service = http.service
    caller = caller_of(http_request, service.config)
    request = await http.bodies.read(http_request, caller, _BODY)
    service.check_model(request.model)
    model = service.engine.check_serving()
    valid = await service.work.call(caller, _valid, service, request, model)
    prompts = [await _prompt(service, item, request, caller, model) for item in valid.items]
    head = Head.new("cmpl", service)
    checked = CheckedRequest(
        request_id=head.id,
        fields=request,
        limits=_limits(request, model),
        prompts=[prompt.tokens for prompt in prompts],
        namespace=namespace_of(request, cache_scope(http_request, service.config)),
        tenant=tenant_of(http_request, request.user, service.config),
        grammar=valid.grammar,
        logprobs=request.logprobs,
        prompt_logprobs=_prompt_logprobs(request),
        leases=cache_leases(request),
    )
    context = CompletionContext(
        head=head,
        tokenizer=service.tokenizer,
        prompts=prompts,
        choices=request.n or 1,
        echo=bool(request.echo),
        wants_logprobs=request.logprobs is not None,
        wants_prompt_logprobs=request.prompt_logprobs is not None,
    )
    return Job(
        head.id,
        prepare(service, checked),
        bool(request.stream),
        partial(_answer, request, context),
        error_event,
        bool(request.explain_cache),
    )


def _answer(
    request: CompletionRequest, context: CompletionContext, reply: Reply
) -> CompletionStream | CompletionWhole:
    if not request.stream:
        return CompletionWhole(context, reply)
    writer = ChunkWriter("text_completion", context.head, request.stream_options)
    return CompletionStream(context, reply, writer)


class _Valid(NamedTuple):
    """The checked parts of a request. `items` are its prompts."""

    items: Sequence[str | list[int]]
    grammar: GrammarSpec | None


def _valid(service: Service, request: CompletionRequest, model: ModelReady) -> _Valid:
    """Raises `RequestError` for a request that can't be served."""
    check_generation(request)
    check_cache_fields(request)
    items = _items(request, service.config.max_waiting)
    for item in items:
        if not isinstance(item, str):
            check_token_ids("prompt", item, model.vocab_size)
    return _Valid(items, enforced_as_asked(constraint(request), request, service.config))


def _limits(request: CompletionRequest, model: ModelReady) -> Limits:
    if prewarms(request):
        return Limits(0, "prompt_cache_options.prewarm", "prompt")
    default = min(DEFAULT_MAX_TOKENS, model.max_model_len)
    return Limits(default if request.max_tokens is None else request.max_tokens, "max_tokens", "prompt")


def _prompt_logprobs(request: CompletionRequest) -> int | None:
    """The alternatives for each token of the prompt; an echoed prompt has at least those of the reply."""
    if request.echo and request.logprobs is not None:
        return max(request.logprobs, request.prompt_logprobs or 0)
    return request.prompt_logprobs


def _items(request: CompletionRequest, max_waiting: int) -> Sequence[str | list[int]]:
    """The prompts: `prompt` is a text, a list of ids, or a list of either. Raises `RequestError`."""
    given = request.prompt
    items: Sequence[str | list[int]]
    if isinstance(given, str):
        items = [given]
    elif given and all(isinstance(item, int) for item in given):
        items = [given]  # type: ignore[list-item]
    elif any(isinstance(item, int) for item in given):
        raise _prompt_error("prompt mixes token ids with texts or lists; give one kind.", "invalid_type")
    else:
        items = given  # type: ignore[assignment]
    if not items:
        raise _prompt_error("prompt must not be empty: it has no texts and no tokens.", "invalid_value")
    check_choices(len(items), request.n or 1, max_waiting)
    return items


async def _prompt(
    service: Service, item: str | list[int], request: CompletionRequest, caller: Caller, model: ModelReady
) -> Prompt:
    if isinstance(item, str):
        special = request.add_special_tokens is not False
        prompt = Prompt(await service.encode(item, special, caller, model.max_model_len, "prompt"), item)
    else:
        prompt = Prompt(array("i", item).tobytes(), None)
    if not prompt.tokens:
        raise _prompt_error("prompt must not be empty: it has no tokens.", "invalid_value")
    return prompt


def _prompt_error(message: str, code: str) -> RequestError:
    return RequestError(message, param="prompt", code=code)
