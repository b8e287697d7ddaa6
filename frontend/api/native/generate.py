"""POST /generate."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from starlette.requests import Request

from ....runtime.errors import RequestError
from ....runtime.messages import GrammarSpec, ModelReady, Tokens
from ...core.cache_misses.outline import NO_OUTLINE, Outline
from ...core.constraint import enforced_as_asked
from ...core.conversation import rendered
from ...core.grammar_fields import (
    choice_spec,
    grammar_spec,
    one_spec,
    regex_spec,
    schema_spec,
)
from ...core.messages import Conversation
from ...core.prepare import CheckedRequest, Limits, namespace_of, new_id, prepare
from ...core.reply import Reply
from ...core.service import Service
from ...core.validation import check_choices, check_fields, check_token_ids
from ...core.work.caller import Caller
from ...http.body_kind import BodyKind
from ...http.endpoint import Job
from ...http.http_service import HttpService
from ...http.outcome import IS_CHAT
from ...http.tenants import cache_scope, caller_of, tenant_of
from .answers import HTTP_FORM, AnswerContext, EventStream, Form, WholeAnswer
from .fields import IN_GENERATE, INERT_FIELDS
from .protocol import GenerateRequest

_BODY = BodyKind(GenerateRequest, INERT_FIELDS, IN_GENERATE)
_PROMPTS = ("prompt", "prompt_token_ids", "messages")


class _Valid(NamedTuple):
    """The checked parts of a request. `texts` are its prompts, unless they are `ids`. `outline` has the
    parts of a conversation."""

    param: str
    texts: Sequence[str]
    ids: Sequence[list[int]]
    grammar: GrammarSpec | None
    outline: Outline


async def prepare_generate(http: HttpService, http_request: Request, form: Form = HTTP_FORM) -> Job:
    """The answer has the form `form`. Raises `RequestError` for a request that can't be served."""
    service = http.service
    caller = caller_of(http_request, service.config)
    request = await http.bodies.read(http_request, caller, _BODY)
    http_request.scope[IS_CHAT] = request.messages is not None
    service.check_model(request.model)
    model = service.engine.check_serving()
    renderer = caller.with_messages(len(request.messages or ()))
    valid = await service.work.call(renderer, _valid, service, request, model)
    namespace = namespace_of(request, cache_scope(http_request, service.config))
    prompts = [array("i", each).tobytes() for each in valid.ids] + [
        await _tokens(service, text, valid.param, request, namespace, caller, model) for text in valid.texts
    ]
    if not all(prompts):
        raise _prompt_error(valid.param, "must not be empty: it has no tokens", "invalid_value")
    id = new_id("gen")
    checked = CheckedRequest(
        request_id=id,
        fields=request,
        limits=Limits(request.max_tokens, "max_tokens", valid.param),
        prompts=prompts,
        namespace=namespace,
        tenant=tenant_of(http_request, request.user, service.config),
        grammar=valid.grammar,
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        outline=valid.outline,
    )
    context = AnswerContext(
        form=form,
        id=id,
        model=service.config.served_model_name,
        fingerprint=service.fingerprint,
        prompts=prompts,
        choices=request.n or 1,
        wants_logprobs=request.logprobs is not None,
        wants_prompt_logprobs=request.prompt_logprobs is not None,
        wants_prompt_ids=bool(request.return_prompt_token_ids),
    )
    streams = bool(request.stream)
    answer = partial(_answer, streams, context)
    return Job(
        id,
        prepare(service, checked),
        streams or form.always_streams,
        answer,
        form.error,
        bool(request.explain_cache),
    )


def _answer(streams: bool, context: AnswerContext, reply: Reply) -> EventStream | WholeAnswer:
    return EventStream(context, reply) if streams else WholeAnswer(context, reply)


def _valid(service: Service, request: GenerateRequest, model: ModelReady) -> _Valid:
    """Raises `RequestError` for a request that can't be served."""
    check_fields(request)
    if request.stream and request.prompt_logprobs is not None:
        raise RequestError(
            "prompt_logprobs is not available in a stream: leave one of them out.",
            param="prompt_logprobs",
            code="unsupported_parameter",
        )
    given = [name for name in _PROMPTS if getattr(request, name) is not None]
    if len(given) != 1:
        problem = f"needs exactly one of {', '.join(_PROMPTS)}, but has {' and '.join(given) or 'none'}"
        raise RequestError(f"The request {problem}.", param="prompt", code="invalid_value")
    (param,) = given
    texts, outline = _texts(service, request)
    ids = _id_lists(request.prompt_token_ids)
    check_choices(len(texts) + len(ids), request.n or 1, service.config.max_waiting)
    if not texts and not ids:
        raise _prompt_error(param, "must not be empty", "invalid_value")
    for each in ids:
        check_token_ids("prompt_token_ids", each, model.vocab_size)
    grammar = enforced_as_asked(_constraint(request), request, service.config)
    return _Valid(param, texts, ids, grammar, outline)


def _texts(service: Service, request: GenerateRequest) -> tuple[Sequence[str], Outline]:
    if request.messages is not None:
        conversation = Conversation(request.messages, variables=request.chat_template_kwargs or {})
        text, outline, _ = rendered(service.template, conversation, None)
        return [text], outline
    prompts = [request.prompt] if isinstance(request.prompt, str) else request.prompt or []
    return prompts, NO_OUTLINE


def _id_lists(given: list[int | list[int]] | None) -> Sequence[list[int]]:
    """One list of ids, or several. Raises `RequestError`."""
    lists = [each for each in given or () if isinstance(each, list)]
    ids = [each for each in given or () if isinstance(each, int)]
    if lists and ids:
        raise _prompt_error("prompt_token_ids", "mixes ids with lists of ids: give one kind", "invalid_type")
    return [ids] if ids else lists


def _constraint(request: GenerateRequest) -> GrammarSpec | None:
    return one_spec(
        (
            schema_spec(request.json_schema, "json_schema"),
            regex_spec(request.regex, "regex"),
            choice_spec(request.choice, "choice"),
            grammar_spec(request.grammar, "grammar"),
        )
    )


async def _tokens(
    service: Service,
    text: str,
    param: str,
    request: GenerateRequest,
    namespace: str | None,
    caller: Caller,
    model: ModelReady,
) -> Tokens:
    if param == "messages":
        special = bool(request.add_special_tokens)
        return await service.encode_rendered(text, special, namespace, caller, model.max_model_len, param)
    return await service.encode(
        text, request.add_special_tokens is not False, caller, model.max_model_len, param
    )


def _prompt_error(param: str, problem: str, code: str) -> RequestError:
    return RequestError(f"{param} {problem}.", param=param, code=code)
