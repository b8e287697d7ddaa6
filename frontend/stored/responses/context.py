"""The items of a prompt: those of earlier responses or a conversation, and the request's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ....runtime.errors import RequestError
from ...core.conversation import MAX_MESSAGES
from ...core.validation import check_count, invalid_field, missing_field
from ...core.work.caller import Caller
from .items import check_kind
from .protocol import Item, PromptFields
from .responses_service import ResponsesService
from .stored_items import complete_item, decode_items


class Context(NamedTuple):
    """The items of a prompt: `earlier` ones that are stored, and the request's `own` ones with new ids.

    The body size of `caller` includes the stored items.
    """

    earlier: Sequence[Item]
    own: Sequence[Item]
    caller: Caller


async def context_of(
    responses: ResponsesService, owner: str, request: PromptFields, caller: Caller
) -> Context:
    """The items of a request's prompt. Raises `RequestError` for items that are not stored for this owner."""
    given = request.input
    items = [Item(type="message", role="user", content=given)] if isinstance(given, str) else (given or [])
    check_count("input", items, MAX_MESSAGES, "items")
    earlier = await _earlier(responses, owner, request)
    own = await _resolved(responses, owner, items)
    size = sum(map(len, earlier))
    with_earlier = replace(caller, body_bytes=lambda: caller.body_bytes() + size)
    with_earlier = with_earlier.with_messages(len(earlier) + len(own))
    return await responses.http.service.work.call(with_earlier, _context, earlier, own, with_earlier)


def _context(earlier: Sequence[bytes], own: Sequence[Item], caller: Caller) -> Context:
    for index, item in enumerate(own):
        check_kind(item, f"input[{index}]")
    return Context(decode_items(earlier), [complete_item(item) for item in own], caller)


def conversation_id(request: PromptFields) -> str | None:
    given = request.conversation
    return given if given is None or isinstance(given, str) else given.id


async def _earlier(responses: ResponsesService, owner: str, request: PromptFields) -> list[bytes]:
    """The JSON of the stored items that the request continues."""
    previous, conversation = request.previous_response_id, conversation_id(request)
    if previous and conversation:
        raise invalid_field("previous_response_id", "and conversation can't be used together: give only one")
    if previous:
        return await responses.store("previous_response_id").read_earlier_items(owner, previous)
    if conversation:
        return await responses.store("conversation").conversations.read_all_items(owner, conversation)
    return []


async def _resolved(responses: ResponsesService, owner: str, items: Sequence[Item]) -> list[Item]:
    """The items, with the stored ones in place of references."""
    for index, item in enumerate(items):
        if item.type == "item_reference" and not item.id:
            raise missing_field(f"input[{index}].id")
    named = {item.id: index for index, item in enumerate(items) if item.type == "item_reference" and item.id}
    if not named:
        return list(items)
    found = await responses.store("input").find_items(owner, named)
    for id, index in named.items():
        if id not in found:
            raise RequestError(
                f"input[{index}].id is {id[:100]!r}, but no such item is stored: send the item itself.",
                status=404,
                param=f"input[{index}].id",
                code="not_found",
            )
    return [found.get(item.id or "", item) if item.type == "item_reference" else item for item in items]
