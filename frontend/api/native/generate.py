"""POST /generate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request

from ....runtime.errors import RequestError
from ....runtime.messages import GrammarSpec
from ...core.attempts import WholeAnswer
from ...core.draft import Draft, Limits, Prompt
from ...core.grammar_fields import one_spec, schema_spec, text_specs
from ...core.messages import Conversation
from ...core.prepare import new_id
from ...core.reply import Reply
from ...core.service import Service
from ...core.validation import check_fields, invalid_field
from ...http.body_kind import BodyKind
from ...http.endpoint import HttpAnswer, HttpJob, read_body
from ...http.http_service import HttpService
from ...http.outcome import IS_CHAT
from .answers import HTTP_FORM, AnswerContext, EventStream, Form
from .fields import IN_GENERATE, INERT
from .protocol import GenerateRequest

_BODY = BodyKind(GenerateRequest, INERT, IN_GENERATE)
_PROMPTS = ("prompt", "prompt_token_ids", "messages")


async def prepare_generate(http: HttpService, http_request: Request, form: Form = HTTP_FORM) -> HttpJob:
    """The answer has the form `form`. Raises `RequestError` for a request that can't be served."""
    incoming = await read_body(http, http_request, _BODY)
    request = incoming.body
    http_request.scope[IS_CHAT] = request.messages is not None
    incoming.http.service.check_model(request.model)
    job = await incoming.prepare(new_id("gen"), partial(_read, form))
    context = AnswerContext(
        form=form,
        id=job.id,
        model=job.model,
        fingerprint=job.service.fingerprint,
        prompts=job.prompts,
        choices=job.choices,
        wants_logprobs=request.logprobs is not None,
        wants_prompt_logprobs=request.prompt_logprobs is not None,
        wants_prompt_ids=bool(request.return_prompt_token_ids),
    )
    return HttpJob(job, partial(_answer, bool(request.stream), context), form.error)


def _answer(streams: bool, context: AnswerContext, reply: Reply) -> HttpAnswer:
    return EventStream(context, reply) if streams else WholeAnswer(reply, context.body)


def _read(form: Form, service: Service, request: GenerateRequest) -> Draft:
    """The draft of a request. Raises `RequestError` if it can't be served."""
    check_fields(request)
    if request.stream and request.prompt_logprobs is not None:
        raise invalid_field(
            "prompt_logprobs", "is not available in a stream: leave one of them out", "unsupported_parameter"
        )
    return Draft(
        fields=request,
        prompt=_prompt(request),
        limits=Limits(request.max_tokens, "max_tokens"),
        constraint=_constraint(request),
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        user=request.user,
        streams=bool(request.stream) or form.always_streams,
        explains=bool(request.explain_cache),
        model=request.model,
    )


def _prompt(request: GenerateRequest) -> Prompt:
    given = [name for name in _PROMPTS if getattr(request, name) is not None]
    if len(given) != 1:
        problem = f"needs exactly one of {', '.join(_PROMPTS)}, but has {' and '.join(given) or 'none'}"
        raise RequestError(f"The request {problem}.", param="prompt", code="invalid_value")
    (param,) = given
    if request.messages is not None:
        conversation = Conversation(request.messages, variables=request.chat_template_kwargs or {})
        return Prompt(param=param, conversation=conversation, special=bool(request.add_special_tokens))
    texts = [request.prompt] if isinstance(request.prompt, str) else request.prompt or []
    items: list[str | list[int]] = [*texts, *_id_lists(request.prompt_token_ids)]
    if not items:
        raise invalid_field(param, "must not be empty")
    return Prompt(param=param, items=items, special=request.add_special_tokens is not False)


def _id_lists(given: list[int | list[int]] | None) -> Sequence[list[int]]:
    """The prompts as lists of ids. Raises `RequestError` for a mixture of ids and lists."""
    lists = [each for each in given or () if isinstance(each, list)]
    ids = [each for each in given or () if isinstance(each, int)]
    if lists and ids:
        raise invalid_field("prompt_token_ids", "mixes ids with lists of ids: give one kind", "invalid_type")
    return [ids] if ids else lists


def _constraint(request: GenerateRequest) -> GrammarSpec | None:
    return one_spec([schema_spec(request.json_schema, "json_schema"), *text_specs(request)])
