"""The endpoints of /v1/conversations, which store the items of conversations."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from msgspec import Raw, structs
from starlette.requests import Request
from starlette.responses import Response

from ...core.conversation import MAX_MESSAGES
from ...core.validation import check_count
from ...http.body_kind import BodyKind, T
from ...http.tenants import caller_of, owner_of
from .fields import CONVERSATIONS, ITEMS, METADATA
from .ids import new_id
from .items import check_items
from .pages import item_list, page_query
from .protocol import MOST_METADATA, Item, Metadata
from .responses import Conversation, Deleted, ItemList
from .responses_service import ResponsesService
from .stored_items import StoredItem, encoded, stored_item

_encode = msgspec.json.encode


async def create(responses: ResponsesService, request: Request) -> Response:
    store = responses.store()
    body = await _body(responses, request, CONVERSATIONS)
    items = await _stored(responses, request, body.items or ())
    _check_metadata(body.metadata)
    made = Conversation(id=new_id("conv"), created_at=int(time.time()), metadata=body.metadata or {})
    await store.add_conversation(owner_of(request.scope), made.id, _encode(made), items)
    return _json(_encode(made))


async def show(responses: ResponsesService, request: Request) -> Response:
    return _json(await responses.store().conversation(owner_of(request.scope), request.path_params["id"]))


async def change(responses: ResponsesService, request: Request) -> Response:
    """Replaces the conversation's metadata."""
    owner, id, store = owner_of(request.scope), request.path_params["id"], responses.store()
    body = await _body(responses, request, METADATA)
    _check_metadata(body.metadata)
    known = msgspec.json.decode(await store.conversation(owner, id), type=Conversation)
    changed = _encode(structs.replace(known, metadata=body.metadata or {}))
    await store.change_conversation(owner, id, changed)
    return _json(changed)


async def delete(responses: ResponsesService, request: Request) -> Response:
    id = request.path_params["id"]
    await responses.store().delete(owner_of(request.scope), id)
    return _json(_encode(Deleted(id=id, object="conversation.deleted")))


async def list_items(responses: ResponsesService, request: Request) -> Response:
    page = page_query(request.query_params)
    id, store = request.path_params["id"], responses.store()
    rows = await store.conversation_page(owner_of(request.scope), id, page)
    return _json(_encode(item_list(rows, page.limit)))


async def add_items(responses: ResponsesService, request: Request) -> Response:
    owner, id, store = owner_of(request.scope), request.path_params["id"], responses.store()
    body = await _body(responses, request, ITEMS)
    items = await _stored(responses, request, body.items)
    await store.add_to_conversation(owner, id, items)
    added = ItemList(
        data=[Raw(item.body) for item in items],
        first_id=items[0].id if items else None,
        last_id=items[-1].id if items else None,
        has_more=False,
    )
    return _json(_encode(added))


async def show_item(responses: ResponsesService, request: Request) -> Response:
    return _json(await _item(responses, request))


async def delete_item(responses: ResponsesService, request: Request) -> Response:
    """Deletes an item, and returns the conversation."""
    owner, id = owner_of(request.scope), request.path_params["id"]
    await _item(responses, request)
    await responses.store().delete_item(owner, id, request.path_params["item"])
    return await show(responses, request)


async def _body(responses: ResponsesService, request: Request, kind: BodyKind[T]) -> T:
    http = responses.http
    return await http.bodies.read(request, caller_of(request, http.service.config), kind)


async def _item(responses: ResponsesService, request: Request) -> bytes:
    """The JSON of the item that the path names. Raises `RequestError`."""
    id, item = request.path_params["id"], request.path_params["item"]
    return await responses.store().conversation_item(owner_of(request.scope), id, item)


async def _stored(responses: ResponsesService, request: Request, items: Sequence[Item]) -> list[StoredItem]:
    """The items as they are stored. Raises `RequestError` for an item that can't be served."""
    service = responses.http.service
    return await service.work.call(caller_of(request, service.config), _checked, items)


def _checked(items: Sequence[Item]) -> list[StoredItem]:
    check_count("items", items, MAX_MESSAGES, "items")
    check_items(items, "items")
    return encoded([stored_item(item) for item in items])


def _check_metadata(metadata: Metadata | None) -> None:
    check_count("metadata", metadata, MOST_METADATA, "entries")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
