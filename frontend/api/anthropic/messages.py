"""POST /v1/messages."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial

from msgspec import UNSET
from starlette.requests import Request

from ....runtime.messages import GrammarSpec, ModelReady
from ...core.constraint import enforced_as_asked
from ...core.fields import SamplingFields
from ...core.leases import Position, breakpoint_leases, positions
from ...core.prepare import Chat, CheckedRequest, Limits, chat_of, namespace_of, prepare
from ...core.reply import Reply
from ...core.service import Service
from ...core.validation import check_fields, check_stop_strings, tokens_in_words, too_long
from ...http.body_kind import BodyKind
from ...http.endpoint import Job
from ...http.faces import ANSWER_ID
from ...http.http_service import HttpService
from ...http.tenants import cache_scope, caller_of, tenant_of
from .answers import MessageContext, MessageStream, MessageWhole
from .breakpoints import breakpoints_of
from .errors import error_event
from .fields import IN_MESSAGES, INERT_FIELDS
from .prompt import Prompt, prompt_of
from .protocol import MessagesRequest
from .thinking import shown

_BODY = BodyKind(MessagesRequest, INERT_FIELDS, IN_MESSAGES, {"prompt": "/v1/completions"})
_SAME_NAMES = sorted({*MessagesRequest.__struct_fields__} & {*SamplingFields.__struct_fields__})


async def prepare_message(http: HttpService, http_request: Request) -> Job:
    """Raises `RequestError` for a request that can't be served."""
    service = http.service
    caller = caller_of(http_request, service.config)
    request = await http.bodies.read(http_request, caller, _BODY)
    service.check_model(request.model)
    model = service.engine.check_serving()
    fields = _sampling_fields(request)
    _check_context(request, model)
    renderer = caller.with_messages(len(request.messages))
    valid = await service.work.call(renderer, _valid, service, request, fields)
    namespace = namespace_of(fields, cache_scope(http_request, service.config))
    prompt = await service.encode_rendered(
        valid.text, False, namespace, caller, model.max_model_len, "messages"
    )
    continues = request.messages[-1].role == "assistant"
    chat, grammar = chat_of(service, valid.text, namespace, valid.grammar, valid.use, continues=continues)
    places = await positions(service, valid.breakpoints, valid.text, prompt, namespace, caller)
    context = _context(service, request, chat, model, places)
    user = request.metadata.user_id if request.metadata is not None else None
    checked = CheckedRequest(
        request_id=context.id,
        fields=fields,
        limits=Limits(request.max_tokens, "max_tokens", "messages"),
        prompts=[prompt],
        namespace=namespace,
        tenant=tenant_of(http_request, user, service.config),
        grammar=grammar,
        logprobs=None,
        prompt_logprobs=None,
        chat=chat,
        outline=valid.outline,
        leases=breakpoint_leases(places),
    )
    return Job(
        context.id,
        prepare(service, checked),
        bool(request.stream),
        partial(_answer, bool(request.stream), context),
        partial(error_event, request_id=http_request.scope[ANSWER_ID]),
        bool(request.explain_cache),
    )


def _sampling_fields(request: MessagesRequest) -> SamplingFields:
    same = {name: getattr(request, name) for name in _SAME_NAMES}
    return SamplingFields(stop=request.stop_sequences, **same)


def _valid(service: Service, request: MessagesRequest, fields: SamplingFields) -> Prompt:
    """Raises `RequestError` for a request that can't be served."""
    check_stop_strings("stop_sequences", request.stop_sequences or ())
    check_fields(fields)
    prompt = prompt_of(service, request)
    grammar: GrammarSpec | None = enforced_as_asked(prompt.grammar, fields, service.config)
    return prompt._replace(grammar=grammar, breakpoints=breakpoints_of(service, request, prompt.form))


def _check_context(request: MessagesRequest, model: ModelReady) -> None:
    """Anthropic's clients can't leave `max_tokens` out, so it must be lowered."""
    most = model.max_model_len
    if request.max_tokens > most:
        raise too_long(
            f"This model's maximum context length is {tokens_in_words(most)}, but max_tokens is "
            f"{request.max_tokens}: lower it to {most} at most.",
            "max_tokens",
        )


def _context(
    service: Service, request: MessagesRequest, chat: Chat, model: ModelReady, places: Sequence[Position]
) -> MessageContext:
    return MessageContext(
        id=f"msg_{secrets.token_hex(12)}",
        model=service.config.served_model_name,
        max_tokens=request.max_tokens,
        page_tokens=model.page_size,
        breakpoints=places,
        shown=shown(request),
        counts_thinking=chat.reasoning is not None,
        context_management=UNSET if request.context_management is None else {"applied_edits": []},
        diagnostics=UNSET if request.diagnostics is None else {"cache_miss_reason": {"type": "unavailable"}},
    )


def _answer(streams: bool, context: MessageContext, reply: Reply) -> MessageStream | MessageWhole:
    return MessageStream(context, reply) if streams else MessageWhole(context, reply)
