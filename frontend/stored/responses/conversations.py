"""The endpoints of /v1/conversations, which store the items of conversations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import structs

from ...core.conversation import MAX_MESSAGES
from ...core.validation import check_count
from ..records.paging import Page, make_page
from ..records.transaction import Part
from ..stored_request import MAX_METADATA, Deleted, StoredRequest
from .conversation_store import ConversationStore
from .fields import CONVERSATIONS, ITEMS, METADATA
from .items import check_items
from .protocol import Item, Metadata, new_id
from .responses import PAGE_ITEMS, Conversation
from .responses_service import ResponsesService
from .stored_items import complete_item, encode_items

_Request = StoredRequest[ResponsesService]


async def create(request: _Request) -> Conversation:
    store = _store(request)
    body = await request.read_body(CONVERSATIONS)
    items = await _encode_checked(request, body.items or ())
    _check_metadata(body.metadata)
    made = Conversation(id=new_id("conv"), created_at=int(time.time()), metadata=body.metadata or {})
    await store.add(request.owner, made.id, msgspec.json.encode(made), items)
    return made


async def show(request: _Request) -> bytes:
    return await _store(request).read(request.owner, request.id)


async def change(request: _Request) -> Conversation:
    """Replaces the conversation's metadata."""
    store = _store(request)
    body = await request.read_body(METADATA)
    _check_metadata(body.metadata)
    known = msgspec.json.decode(await store.read(request.owner, request.id), type=Conversation)
    changed = structs.replace(known, metadata=body.metadata or {})
    await store.change(request.owner, request.id, msgspec.json.encode(changed))
    return changed


async def delete(request: _Request) -> Deleted:
    await _store(request).delete(request.owner, request.id)
    return Deleted(id=request.id, object="conversation.deleted")


async def list_items(request: _Request) -> Page[msgspec.Raw]:
    rows = partial(_store(request).list_items, request.owner, request.id)
    return await request.list_page(PAGE_ITEMS, msgspec.Raw, rows)


async def add_items(request: _Request) -> Page[msgspec.Raw]:
    store = _store(request)
    body = await request.read_body(ITEMS)
    items = await _encode_checked(request, body.items)
    await store.add_items(request.owner, request.id, items)
    return make_page([(item.id, item.body) for item in items], len(items), msgspec.Raw)


async def show_item(request: _Request) -> bytes:
    item = request.http_request.path_params["item"]
    return await _store(request).read_item(request.owner, request.id, item)


async def delete_item(request: _Request) -> bytes:
    """Deletes an item, and returns the conversation."""
    item = request.http_request.path_params["item"]
    await _store(request).delete_item(request.owner, request.id, item)
    return await show(request)


def _store(request: _Request) -> ConversationStore:
    return request.service.store().conversations


async def _encode_checked(request: _Request, items: Sequence[Item]) -> list[Part]:
    """The items as they are stored. Raises `RequestError` for an item that can't be served."""
    return await request.service.http.service.work.call(request.caller, _check_and_encode, items)


def _check_and_encode(items: Sequence[Item]) -> list[Part]:
    check_count("items", items, MAX_MESSAGES, "items")
    check_items(items, "items")
    return encode_items([complete_item(item) for item in items])


def _check_metadata(metadata: Metadata | None) -> None:
    check_count("metadata", metadata, MAX_METADATA, "entries")
