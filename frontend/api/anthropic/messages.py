"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import secrets
from functools import partial

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from ...core.attempts import StreamedAnswer, WholeAnswer
from ...core.draft import Draft, Limits, Prompt
from ...core.fields import SamplingFields
from ...core.prepare import Job
from ...core.reply import Reply
from ...core.requested_tools import tool_use
from ...core.service import Service
from ...core.validation import check_fields, check_stop_strings
from ...http.apis import ANSWER_ID, json_response
from ...http.body_kind import BodyKind
from ...http.endpoint import HttpAnswer, HttpJob, read_body
from ...http.http_service import HttpService
from .answers import MessageContext, MessageStream
from .errors import error_event
from .fields import IN_MESSAGES, IN_PROMPTS, INERT
from .prompt import read_calls, read_constraint, read_prompt
from .protocol import MessagesRequest, PromptRequest
from .responses import TokensCount
from .thinking import shown

_BODY = BodyKind(MessagesRequest, INERT, IN_MESSAGES, {"prompt": "/v1/completions"})
_PROMPT = BodyKind(PromptRequest, INERT, IN_PROMPTS)


async def prepare_message(http: HttpService, http_request: Request) -> HttpJob:
    incoming = await read_body(http, http_request, _BODY)
    incoming.http.service.check_model(incoming.body.model)
    job = await incoming.prepare(f"msg_{secrets.token_hex(12)}", _read)
    failed = partial(error_event, request_id=http_request.scope[ANSWER_ID])
    return HttpJob(job, partial(_answer, bool(incoming.body.stream), _context(incoming.body, job)), failed)


def _read(service: Service, request: MessagesRequest) -> Draft:
    """The draft of a request. Raises `RequestError` if it can't be served."""
    fields = SamplingFields.copy_from(request, stop=request.stop_sequences)
    check_stop_strings("stop_sequences", request.stop_sequences or ())
    check_fields(fields)
    prompt, constraint = read_prompt(service, request), read_constraint(request)
    return Draft(
        fields=fields,
        prompt=prompt,
        limits=Limits(request.max_tokens, "max_tokens", is_required=True),
        is_chat=True,
        calls=read_calls(request, prompt.tools, constraint),
        constraint=constraint,
        user=None if request.metadata is None else request.metadata.user_id,
        streams=bool(request.stream),
        explains=bool(request.explain_cache),
        model=request.model,
    )


def _context(request: MessagesRequest, job: Job) -> MessageContext:
    max_tokens = job.requests[0].sampling.max_tokens
    return MessageContext(
        id=job.id,
        model=job.model,
        context_left=max_tokens if max_tokens < request.max_tokens else None,
        page_tokens=job.service.engine.check_serving().page_size,
        breakpoints=job.positions,
        shown=shown(request),
        counts_thinking=job.reasoning is not None,
        context_management=UNSET if request.context_management is None else {"applied_edits": []},
        diagnostics=UNSET if request.diagnostics is None else {"cache_miss_reason": {"type": "unavailable"}},
    )


def _answer(streams: bool, context: MessageContext, reply: Reply) -> HttpAnswer:
    if not streams:
        return WholeAnswer(reply, context.body)
    return StreamedAnswer(reply, MessageStream(context, reply))


async def count_tokens(http: HttpService, http_request: Request) -> Response:
    """Counts the tokens of the prompt that /v1/messages would render from the same fields."""
    incoming = await read_body(http, http_request, _PROMPT)
    incoming.http.service.check_model(incoming.body.model)
    tokens = await incoming.tokenize(_read_prompt, incoming.body.cache_salt)
    return json_response(TokensCount(len(tokens) // 4))


def _read_prompt(service: Service, request: PromptRequest) -> Prompt:
    prompt, constraint = read_prompt(service, request), read_constraint(request)
    calls = read_calls(request, prompt.tools, constraint)
    tool_use(calls, service.tool_format, constraint)  # raises an error for wrong tools
    return prompt
