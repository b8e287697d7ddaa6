"""POST /v1/messages/count_tokens."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...core.draft import Prompt
from ...core.requested_tools import tool_use
from ...core.service import Service
from ...http.body_kind import BodyKind
from ...http.endpoint import read_body
from ...http.http_service import HttpService
from .fields import IN_PROMPTS, INERT
from .prompt import read_calls, read_constraint, read_prompt
from .protocol import PromptRequest
from .responses import TokensCount

_BODY = BodyKind(PromptRequest, INERT, IN_PROMPTS)


async def count_tokens(http: HttpService, http_request: Request) -> Response:
    """The tokens of the prompt that /v1/messages would make of the same fields."""
    incoming = await read_body(http, http_request, _BODY)
    http.service.check_model(incoming.body.model)
    tokens = await incoming.tokenize(_read, incoming.body.cache_salt)
    return Response(msgspec.json.encode(TokensCount(len(tokens) // 4)), media_type="application/json")


def _read(service: Service, request: PromptRequest) -> Prompt:
    prompt, constraint = read_prompt(service, request), read_constraint(request)
    calls = read_calls(request, prompt.tools, constraint)
    tool_use(calls, service.tool_format, constraint)  # may refuse the request
    return prompt
