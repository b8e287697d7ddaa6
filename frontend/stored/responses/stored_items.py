"""The items of stored responses and conversations: their JSON, their rows, and pages of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import aiosqlite
import msgspec
from msgspec import structs

from ....runtime.errors import RequestError
from .database import Database, Row
from .ids import item_id
from .items import kind_of
from .pages import PageQuery
from .protocol import Item, Part
from .responses import OutputItem

_decoder = msgspec.json.Decoder(Item)


class StoredItem(NamedTuple):
    """`body` is the item's JSON."""

    id: str
    body: bytes
    is_output: bool


def stored_item(item: Item) -> Item:
    """The item as it is stored and listed: with an id, and with parts as the content of a message."""
    content = item.content
    if kind_of(item) == "message" and isinstance(content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        content = [Part(type=kind, text=content)]
    return structs.replace(item, id=item.id or item_id(item.type), type=kind_of(item), content=content)


def encoded(own: Iterable[Item], output: Iterable[OutputItem] = ()) -> list[StoredItem]:
    """The items to store. Long ones take a while, so call it on another thread."""
    return [StoredItem(item.id or "", msgspec.json.encode(item), False) for item in own] + [
        StoredItem(item.id, msgspec.json.encode(item), True) for item in output
    ]


def decoded(bodies: Iterable[bytes]) -> list[Item]:
    return [_decoder.decode(body) for body in bodies]


async def add_items(connection: aiosqlite.Connection, holder: str, items: Sequence[StoredItem]) -> None:
    """Adds the items behind those that the holder has."""
    ((last,),) = await connection.execute_fetchall(
        "SELECT coalesce(max(place), -1) FROM items WHERE holder = ?", (holder,)
    )
    rows = [
        (holder, place, item.id, item.is_output, item.body)
        for place, item in enumerate(items, start=last + 1)
    ]
    await connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)


async def item_rows(database: Database, holder: str, page: PageQuery, *, with_output: bool) -> list[Row]:
    """The id and JSON of the items on a page, and of one item more unless it is the last page.

    Raises `RequestError` if the page follows an item that the list does not have.
    """
    condition = "holder = ?" if with_output else "holder = ? AND is_output = 0"
    values: list[object] = [holder]
    if page.after is not None:
        found = await database.rows(
            f"SELECT place FROM items INDEXED BY by_id WHERE id = ? AND {condition}", (page.after, holder)
        )
        if not found:
            raise RequestError(
                f"after is {page.after[:100]!r}, which is no item of the list.",
                param="after",
                code="invalid_value",
            )
        condition += f" AND place {'>' if page.is_ascending else '<'} ?"
        values.append(found[0][0])
    order = "ASC" if page.is_ascending else "DESC"
    return await database.rows(
        f"SELECT id, body FROM items WHERE {condition} ORDER BY place {order} LIMIT ?",
        (*values, page.limit + 1),
    )
