"""Anthropic's API as an API of the server: its routes and the form of its errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from starlette.routing import Route

from ...core.declared import within
from ...http.apis import Api, route
from ...http.endpoint import GenerationEndpoint
from ...http.http_service import HttpService
from ...http.operation import GENERATES, DescribedRoute, Operation
from .errors import STATUSES, allowance_headers, error_json
from .messages import count_tokens, prepare_message
from .models import MAX_MODELS, list_models, show_model
from .protocol import MessagesRequest, PromptRequest
from .responses import EVENTS, ErrorResponse, Message, ModelInfo, ModelPage, TokensCount

_QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]
_MESSAGE = Operation(
    summary="Continue a conversation",
    body=MessagesRequest,
    example={"messages": _QUESTION, "max_tokens": 100},
    reply=Message,
    events=EVENTS,
    errors=GENERATES,
)
_COUNT = Operation(
    summary="Count the tokens of a prompt",
    body=PromptRequest,
    example={"messages": _QUESTION},
    reply=TokensCount,
)
_LIST = Operation(
    summary="List the models",
    query={"limit": Annotated[int, within(1, MAX_MODELS)], "after_id": str, "before_id": str},
    reply=ModelPage,
)
_SHOW = Operation(summary="Describe a model", reply=ModelInfo)


def _routes(http: HttpService) -> Sequence[Route]:
    return [
        DescribedRoute("POST", "/v1/messages", GenerationEndpoint(http, prepare_message), _MESSAGE),
        route("POST", "/v1/messages/count_tokens", http, count_tokens, _COUNT),
        route("GET", "/v1/models", http, list_models, _LIST),
        route("GET", "/v1/models/{model:path}", http, show_model, _SHOW),
    ]


ANTHROPIC = Api(
    _routes,
    error_json,
    prefixes=("/v1/messages",),
    shared=("/v1/models",),
    header=b"anthropic-version",
    id_header=b"request-id",
    statuses=STATUSES,
    allowance_headers=allowance_headers,
    batched=("/v1/messages",),
    name="Anthropic",
    error=ErrorResponse,
)
