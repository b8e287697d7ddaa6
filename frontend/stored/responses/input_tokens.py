"""POST /v1/responses/input_tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...core.draft import Prompt
from ...core.requested_tools import tool_use
from ...core.service import Service
from ...http.endpoint import read_body
from ...http.tenants import owner_of
from .context import Context, context_of
from .fields import PROMPTS
from .prompt import read_constraint, read_prompt
from .protocol import PromptFields
from .responses import TokensCount
from .responses_service import ResponsesService


async def input_tokens(responses: ResponsesService, http_request: Request) -> Response:
    """Counts the tokens of the prompt that /v1/responses would render from the same fields."""
    incoming = await read_body(responses.http, http_request, PROMPTS)
    request = incoming.body
    responses.http.service.check_model(request.model)
    context = await context_of(responses, owner_of(http_request.scope), request, incoming.caller)
    incoming = replace(incoming, caller=context.caller)
    tokens = await incoming.tokenize(partial(_read, context), request.cache_salt)
    count = TokensCount(input_tokens=len(tokens) // 4)
    return Response(msgspec.json.encode(count), media_type="application/json")


def _read(context: Context, service: Service, request: PromptFields) -> Prompt:
    prompt, calls = read_prompt(service, request, context.earlier, context.own)
    tool_use(calls, service.tool_format, read_constraint(request))  # may refuse the request
    return prompt
