"""POST /v1/messages/count_tokens."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ...core.prepare import cache_namespace
from ...core.validation import check_salt
from ...http.body_kind import BodyKind
from ...http.http_service import HttpService
from ...http.tenants import cache_scope, caller_of
from .fields import IN_PROMPTS, INERT_FIELDS
from .prompt import prompt_of
from .protocol import PromptRequest
from .responses import TokensCount

MOST_TOKENS = 1 << 20  # of a prompt that is only counted, unless the model's context is longer

_BODY = BodyKind(PromptRequest, INERT_FIELDS, IN_PROMPTS)


async def count_tokens(http: HttpService, http_request: Request) -> Response:
    """The tokens of the prompt that /v1/messages would make of the same fields."""
    service = http.service
    caller = caller_of(http_request, service.config)
    request = await http.bodies.read(http_request, caller, _BODY)
    service.check_model(request.model)
    check_salt(request.cache_salt)
    model = service.engine.model or service.engine.check_serving()
    renderer = caller.with_messages(len(request.messages))
    prompt = await service.work.call(renderer, prompt_of, service, request)
    namespace = cache_namespace(cache_scope(http_request, service.config), request.cache_salt)
    most = max(MOST_TOKENS, model.max_model_len)
    tokens = await service.encode_rendered(prompt.text, False, namespace, caller, most, "messages")
    return Response(msgspec.json.encode(TokensCount(len(tokens) // 4)), media_type="application/json")
