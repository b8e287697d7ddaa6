"""OpenAI's Responses API as an API of the server: its routes and the form of its errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...api.openai.errors import error_json
from ...api.openai.responses import ErrorResponse
from ...http.apis import Api
from ...http.endpoint import GenerationEndpoint, HttpJob
from ...http.http_service import HttpService
from ...http.operation import DescribedRoute, Operation
from . import conversations, retrieve
from .create import prepare_response
from .input_tokens import input_tokens
from .operations import (
    ADD_ITEMS,
    CANCEL,
    CHANGE_CONVERSATION,
    COUNT,
    CREATE,
    CREATE_CONVERSATION,
    DELETE,
    DELETE_CONVERSATION,
    DELETE_ITEM,
    INPUT_ITEMS,
    LIST_ITEMS,
    RETRIEVE,
    SHOW_CONVERSATION,
    SHOW_ITEM,
)
from .responses_service import ResponsesService

Handler: TypeAlias = Callable[[ResponsesService, Request], Awaitable[Response]]


class _ResponseId(StringConvertor):
    """Any text but the other names below /v1/responses in OpenAI's API: GET /v1/responses/compact would
    otherwise look for a response with this id."""

    regex = r"(?!(?:compact|input_tokens)(?:/|$))[^/]+"


register_url_convertor("response_id", _ResponseId())
RESPONSE, CONVERSATION = "/v1/responses/{id:response_id}", "/v1/conversations/{id}"
HANDLERS: Sequence[tuple[str, str, Handler, Operation]] = (
    ("POST", "/v1/responses/input_tokens", input_tokens, COUNT),
    ("GET", RESPONSE, retrieve.retrieve, RETRIEVE),
    ("DELETE", RESPONSE, retrieve.delete, DELETE),
    ("POST", f"{RESPONSE}/cancel", retrieve.cancel, CANCEL),
    ("GET", f"{RESPONSE}/input_items", retrieve.input_items, INPUT_ITEMS),
    ("POST", "/v1/conversations", conversations.create, CREATE_CONVERSATION),
    ("GET", CONVERSATION, conversations.show, SHOW_CONVERSATION),
    ("POST", CONVERSATION, conversations.change, CHANGE_CONVERSATION),
    ("DELETE", CONVERSATION, conversations.delete, DELETE_CONVERSATION),
    ("GET", f"{CONVERSATION}/items", conversations.list_items, LIST_ITEMS),
    ("POST", f"{CONVERSATION}/items", conversations.add_items, ADD_ITEMS),
    ("GET", f"{CONVERSATION}/items/{{item}}", conversations.show_item, SHOW_ITEM),
    ("DELETE", f"{CONVERSATION}/items/{{item}}", conversations.delete_item, DELETE_ITEM),
)


def _routes(http: HttpService) -> Sequence[Route]:
    responses = ResponsesService.of(http)

    async def prepare(http: HttpService, request: Request) -> HttpJob:
        return await prepare_response(responses, request)

    create = DescribedRoute("POST", "/v1/responses", GenerationEndpoint(http, prepare), CREATE)
    return [
        create,
        *(
            DescribedRoute(method, path, partial(handler, responses), operation)
            for method, path, handler, operation in HANDLERS
        ),
    ]


RESPONSES = Api(
    _routes,
    error_json,
    prefixes=("/v1/responses", "/v1/conversations"),
    batched=("/v1/responses",),
    name="OpenAI Responses",
    error=ErrorResponse,
)
