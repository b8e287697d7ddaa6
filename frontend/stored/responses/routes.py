"""OpenAI's Responses API as an API of the server: its routes and the form of its errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Raw
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.routing import Route

from ...api.openai.errors import error_json
from ...api.openai.responses import ErrorResponse
from ...core.declared import one_of, within
from ...http.apis import Api
from ...http.endpoint import GenerationEndpoint, HttpJob
from ...http.http_service import HttpService
from ...http.operation import GENERATES, DescribedRoute, Operation
from ..records.paging import ORDERS, Page
from ..stored_request import Deleted, HandlerRow, make_routes
from . import conversations, retrieve
from .create import count_tokens, prepare_response
from .event_types import EVENTS
from .protocol import (
    ConversationRequest,
    Item,
    ItemsRequest,
    MetadataRequest,
    PromptFields,
    ResponsesRequest,
)
from .responses import PAGE_ITEMS, Conversation, Response, TokensCount
from .responses_service import ResponsesService


class _ResponseId(StringConvertor):
    """Matches any text but OpenAI's other names below /v1/responses: GET /v1/responses/compact would
    otherwise look for a response with this id."""

    regex = r"(?!(?:compact|input_tokens)(?:/|$))[^/]+"


register_url_convertor("response_id", _ResponseId())
RESPONSE, CONVERSATION = "/v1/responses/{id:response_id}", "/v1/conversations/{id}"
_QUESTION = {"input": "Why is the sky blue?"}
_ITEMS = {"items": [{"role": "user", "content": "Why is the sky blue?"}]}
_METADATA = {"metadata": {"topic": "physics"}}
_PAGE = {
    "limit": Annotated[int, within(1, PAGE_ITEMS[1])],
    "after": str,
    "order": Annotated[str, one_of(ORDERS)],
}
_CREATE = Operation(
    summary="Create a response",
    body=ResponsesRequest,
    example={**_QUESTION, "max_output_tokens": 100},
    reply=Response,
    events=EVENTS,
    errors=GENERATES,
)
_COUNT = Operation(
    summary="Count the tokens of a prompt", body=PromptFields, example=_QUESTION, reply=TokensCount
)
_RETRIEVE = Operation(
    summary="Show a stored response, or its events",
    query={"stream": bool, "starting_after": Annotated[int, within(0)]},
    reply=Response,
    events=EVENTS,
)
_DELETE = Operation(summary="Delete a stored response", reply=Deleted)
_CANCEL = Operation(summary="Cancel a background response", reply=Response)
_LIST_INPUT = Operation(summary="List the input items of a response", query=_PAGE, reply=Page[Raw])
_CREATE_CONVERSATION = Operation(
    summary="Create a conversation",
    body=ConversationRequest,
    example={**_ITEMS, **_METADATA},
    reply=Conversation,
)
_SHOW_CONVERSATION = Operation(summary="Show a conversation", reply=Conversation)
_CHANGE_CONVERSATION = Operation(
    summary="Replace the metadata of a conversation",
    body=MetadataRequest,
    example=_METADATA,
    reply=Conversation,
)
_DELETE_CONVERSATION = Operation(summary="Delete a conversation", reply=Deleted)
_LIST_ITEMS = Operation(summary="List the items of a conversation", query=_PAGE, reply=Page[Raw])
_ADD_ITEMS = Operation(
    summary="Add items to a conversation", body=ItemsRequest, example=_ITEMS, reply=Page[Raw]
)
_SHOW_ITEM = Operation(summary="Show an item of a conversation", reply=Item)
_DELETE_ITEM = Operation(summary="Delete an item of a conversation", reply=Conversation)

HANDLERS: Sequence[HandlerRow[ResponsesService]] = (
    ("POST", "/v1/responses/input_tokens", count_tokens, _COUNT),
    ("GET", RESPONSE, retrieve.retrieve, _RETRIEVE),
    ("DELETE", RESPONSE, retrieve.delete, _DELETE),
    ("POST", f"{RESPONSE}/cancel", retrieve.cancel, _CANCEL),
    ("GET", f"{RESPONSE}/input_items", retrieve.list_input, _LIST_INPUT),
    ("POST", "/v1/conversations", conversations.create, _CREATE_CONVERSATION),
    ("GET", CONVERSATION, conversations.show, _SHOW_CONVERSATION),
    ("POST", CONVERSATION, conversations.change, _CHANGE_CONVERSATION),
    ("DELETE", CONVERSATION, conversations.delete, _DELETE_CONVERSATION),
    ("GET", f"{CONVERSATION}/items", conversations.list_items, _LIST_ITEMS),
    ("POST", f"{CONVERSATION}/items", conversations.add_items, _ADD_ITEMS),
    ("GET", f"{CONVERSATION}/items/{{item}}", conversations.show_item, _SHOW_ITEM),
    ("DELETE", f"{CONVERSATION}/items/{{item}}", conversations.delete_item, _DELETE_ITEM),
)


def _routes(http: HttpService) -> Sequence[Route]:
    responses = ResponsesService.of(http)

    async def prepare(http: HttpService, request: Request) -> HttpJob:
        return await prepare_response(responses, request)

    create = DescribedRoute("POST", "/v1/responses", GenerationEndpoint(http, prepare), _CREATE)
    return [create, *make_routes(responses, HANDLERS)]


RESPONSES = Api(
    _routes,
    error_json,
    prefixes=("/v1/responses", "/v1/conversations"),
    batched=("/v1/responses",),
    name="OpenAI Responses",
    error=ErrorResponse,
)
