"""The declarations of the Responses API for /openapi.json."""

from __future__ import annotations

from typing import Annotated

from msgspec import Raw

from ...core.declared import one_of, within
from ...http.operation import GENERATES, Operation
from ..records.paging import ORDERS, Page
from .event_types import EVENTS
from .protocol import (
    ConversationRequest,
    Item,
    ItemsRequest,
    MetadataRequest,
    PromptFields,
    ResponsesRequest,
)
from .responses import PAGE_ITEMS, Conversation, Deleted, Response, TokensCount

_QUESTION = {"input": "Why is the sky blue?"}
_ITEMS = {"items": [{"role": "user", "content": "Why is the sky blue?"}]}
_METADATA = {"metadata": {"topic": "physics"}}
_PAGE = {
    "limit": Annotated[int, within(1, PAGE_ITEMS[1])],
    "after": str,
    "order": Annotated[str, one_of(ORDERS)],
}

CREATE = Operation(
    summary="Create a response",
    body=ResponsesRequest,
    example={**_QUESTION, "max_output_tokens": 100},
    reply=Response,
    events=EVENTS,
    errors=GENERATES,
)
COUNT = Operation(
    summary="Count the tokens of a prompt", body=PromptFields, example=_QUESTION, reply=TokensCount
)
RETRIEVE = Operation(
    summary="Show a stored response, or its events",
    query={"stream": bool, "starting_after": Annotated[int, within(0)]},
    reply=Response,
    events=EVENTS,
)
DELETE = Operation(summary="Delete a stored response", reply=Deleted)
CANCEL = Operation(summary="Cancel a background response", reply=Response)
INPUT_ITEMS = Operation(summary="List the input items of a response", query=_PAGE, reply=Page[Raw])
CREATE_CONVERSATION = Operation(
    summary="Create a conversation",
    body=ConversationRequest,
    example={**_ITEMS, **_METADATA},
    reply=Conversation,
)
SHOW_CONVERSATION = Operation(summary="Show a conversation", reply=Conversation)
CHANGE_CONVERSATION = Operation(
    summary="Replace the metadata of a conversation",
    body=MetadataRequest,
    example=_METADATA,
    reply=Conversation,
)
DELETE_CONVERSATION = Operation(summary="Delete a conversation", reply=Deleted)
LIST_ITEMS = Operation(summary="List the items of a conversation", query=_PAGE, reply=Page[Raw])
ADD_ITEMS = Operation(
    summary="Add items to a conversation", body=ItemsRequest, example=_ITEMS, reply=Page[Raw]
)
SHOW_ITEM = Operation(summary="Show an item of a conversation", reply=Item)
DELETE_ITEM = Operation(summary="Delete an item of a conversation", reply=Conversation)
