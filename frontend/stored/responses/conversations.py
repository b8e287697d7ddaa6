"""The endpoints of /v1/conversations, which store the items of conversations."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from ...core.conversation import MAX_MESSAGES
from ...core.validation import check_count
from ...http.body_kind import BodyKind, T
from ...http.tenants import caller_of, owner_of
from ..records.paging import make_page, parse_page_query
from ..records.transaction import Part
from .conversation_store import ConversationStore
from .fields import CONVERSATIONS, ITEMS, METADATA
from .ids import new_id
from .items import check_items
from .protocol import MAX_METADATA, Item, Metadata
from .responses import PAGE_ITEMS, Conversation, Deleted
from .responses_service import ResponsesService
from .stored_items import complete_item, encode_items

_encode = msgspec.json.encode


async def create(responses: ResponsesService, request: Request) -> Response:
    store = _store(responses)
    body = await _read_body(responses, request, CONVERSATIONS)
    items = await _encode_checked(responses, request, body.items or ())
    _check_metadata(body.metadata)
    made = Conversation(id=new_id("conv"), created_at=int(time.time()), metadata=body.metadata or {})
    await store.add(owner_of(request.scope), made.id, _encode(made), items)
    return _json(_encode(made))


async def show(responses: ResponsesService, request: Request) -> Response:
    return _json(await _store(responses).read(owner_of(request.scope), request.path_params["id"]))


async def change(responses: ResponsesService, request: Request) -> Response:
    """Replaces the conversation's metadata."""
    owner, id, store = owner_of(request.scope), request.path_params["id"], _store(responses)
    body = await _read_body(responses, request, METADATA)
    _check_metadata(body.metadata)
    known = msgspec.json.decode(await store.read(owner, id), type=Conversation)
    changed = _encode(structs.replace(known, metadata=body.metadata or {}))
    await store.change(owner, id, changed)
    return _json(changed)


async def delete(responses: ResponsesService, request: Request) -> Response:
    id = request.path_params["id"]
    await _store(responses).delete(owner_of(request.scope), id)
    return _json(_encode(Deleted(id=id, object="conversation.deleted")))


async def list_items(responses: ResponsesService, request: Request) -> Response:
    page = parse_page_query(request.query_params, *PAGE_ITEMS)
    id, store = request.path_params["id"], _store(responses)
    rows = await store.list_items(owner_of(request.scope), id, page)
    return _json(_encode(make_page(rows, page.limit, msgspec.Raw)))


async def add_items(responses: ResponsesService, request: Request) -> Response:
    owner, id, store = owner_of(request.scope), request.path_params["id"], _store(responses)
    body = await _read_body(responses, request, ITEMS)
    items = await _encode_checked(responses, request, body.items)
    await store.add_items(owner, id, items)
    return _json(_encode(make_page([(item.id, item.body) for item in items], len(items), msgspec.Raw)))


async def show_item(responses: ResponsesService, request: Request) -> Response:
    return _json(await _read_item(responses, request))


async def delete_item(responses: ResponsesService, request: Request) -> Response:
    """Deletes an item, and returns the conversation."""
    owner, id = owner_of(request.scope), request.path_params["id"]
    await _read_item(responses, request)
    await _store(responses).delete_item(owner, id, request.path_params["item"])
    return await show(responses, request)


def _store(responses: ResponsesService) -> ConversationStore:
    return responses.store().conversations


async def _read_body(responses: ResponsesService, request: Request, kind: BodyKind[T]) -> T:
    http = responses.http
    return await http.bodies.read(request, caller_of(request, http.service.config), kind)


async def _read_item(responses: ResponsesService, request: Request) -> bytes:
    """The JSON of the item that the path names. Raises `RequestError`."""
    id, item = request.path_params["id"], request.path_params["item"]
    return await _store(responses).read_item(owner_of(request.scope), id, item)


async def _encode_checked(responses: ResponsesService, request: Request, items: Sequence[Item]) -> list[Part]:
    """The items as they are stored. Raises `RequestError` for an item that can't be served."""
    service = responses.http.service
    return await service.work.call(caller_of(request, service.config), _check_and_encode, items)


def _check_and_encode(items: Sequence[Item]) -> list[Part]:
    check_count("items", items, MAX_MESSAGES, "items")
    check_items(items, "items")
    return encode_items([complete_item(item) for item in items])


def _check_metadata(metadata: Metadata | None) -> None:
    check_count("metadata", metadata, MAX_METADATA, "entries")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
