"""POST /v1/responses/input_tokens."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...core.prepare import cache_namespace
from ...core.validation import check_salt
from ...http.tenants import cache_scope, caller_of, owner_of
from .context import context_of
from .fields import PROMPTS
from .prompt import prompt_of
from .responses import TokensCount
from .responses_service import ResponsesService

MOST_TOKENS = 1 << 20  # of a prompt that is only counted, unless the model's context is longer


async def input_tokens(responses: ResponsesService, http_request: Request) -> Response:
    """Counts the tokens of the prompt that /v1/responses would render from the same fields."""
    http = responses.http
    service, config = http.service, http.service.config
    caller = caller_of(http_request, config)
    request = await http.bodies.read(http_request, caller, PROMPTS)
    service.check_model(request.model)
    check_salt(request.cache_salt)
    model = service.engine.model or service.engine.check_serving()
    context = await context_of(responses, owner_of(http_request.scope), request, caller)
    caller = context.caller
    prompt = await service.work.call(caller, prompt_of, service, request, context.earlier, context.own)
    namespace = cache_namespace(cache_scope(http_request, config), request.cache_salt)
    most = max(MOST_TOKENS, model.max_model_len)
    tokens = await service.encode_rendered(prompt.text, False, namespace, caller, most, "input")
    count = TokensCount(input_tokens=len(tokens) // 4)
    return Response(msgspec.json.encode(count), media_type="application/json")
