"""The records of responses and conversations, and the items that are their parts."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec
from msgspec import structs

from ..records.transaction import Part as RecordPart
from ..records.transaction import Record, Transaction, missing_record
from .items import kind_of
from .protocol import Item, Part, new_item_id
from .responses import OutputItem

RESPONSE, CONVERSATION = "response", "conversation"
INPUT, OUTPUT, EVENTS = "input", "output", "events"
"""The kinds of a response's parts. A conversation has parts of the first two kinds."""
MAX_AGE_S = 30 * 24 * 3600
"""Seconds for which a record is kept after its last use."""
_decoder = msgspec.json.Decoder(Item)


def complete_item(item: Item) -> Item:
    """The item as it is stored and listed: with an id, and with parts as the content of a message."""
    content = item.content
    if kind_of(item) == "message" and isinstance(content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        content = [Part(type=kind, text=content)]
    return structs.replace(item, id=item.id or new_item_id(item.type), type=kind_of(item), content=content)


def encode_items(own: Iterable[Item], output: Iterable[OutputItem] = ()) -> list[RecordPart]:
    """The items to store. Long ones take a while, so call it on another thread."""
    return [RecordPart(INPUT, item.id or "", msgspec.json.encode(item)) for item in own] + [
        RecordPart(OUTPUT, item.id, msgspec.json.encode(item)) for item in output
    ]


def decode_items(bodies: Iterable[bytes]) -> list[Item]:
    return [_decoder.decode(body) for body in bodies]


def new_expiry() -> float:
    """When a record that is used now is deleted, in seconds since 1970."""
    return time.time() + MAX_AGE_S


def find_record(transaction: Transaction, kind: str, owner: str, id: str, param: str | None = None) -> Record:
    """Finds a record. Raises a 404 `RequestError` if the owner has no such record."""
    record = transaction.find(kind, id, owner)
    if record is None:
        raise missing_record(kind, id, param)
    return record


def change_body(transaction: Transaction, record: Record, body: bytes) -> Record:
    return transaction.change(record, body=body, size=record.size + len(body) - len(record.body))
