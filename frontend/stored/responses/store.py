"""Stored responses and conversations. Each belongs to an owner, and other owners can't see it."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

import aiosqlite
import msgspec
from msgspec import Raw, structs

from ....runtime.errors import RequestError
from ..database.errors import storage_errors
from .alive import AliveFile, is_alive
from .answers import failed
from .database import CONTENTS, MOST_AGE_S, Database, Row
from .pages import PageQuery
from .protocol import Item
from .responses import Response
from .stored_items import StoredItem, add_items, encoded, item_rows

_CHAIN = """
WITH RECURSIVE chain (id, previous, depth) AS (
    SELECT id, previous, 0 FROM holders WHERE id = ?
    UNION ALL
    SELECT holders.id, holders.previous, depth + 1 FROM holders JOIN chain ON holders.id = chain.previous
    WHERE holders.owner = ?
)
"""
_OPEN = ("queued", "in_progress")
_INTERRUPTED = RequestError(
    "The server was stopped while it computed this response: send the request again.", status=500
)
_encode = msgspec.json.encode
_items = msgspec.json.Decoder(Item)
_fields = msgspec.json.Decoder(dict[str, Raw])


class Store:
    """The responses and conversations in a data directory."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory = directory
        self._database = Database(directory, most_bytes)
        self._alive: AliveFile | None = None
        self._has_begun = False

    async def add(self, owner: str, response: Response, items: Sequence[Item]) -> None:
        """Stores a response that has ended. `items` are its input. Its conversation gets its items too.

        Raises a 507 `RequestError` for a response that exceeds the owner's share of the space.
        """
        await self._end_interrupted()
        stored = await asyncio.to_thread(encoded, items, response.output)
        async with self._database.transaction() as connection:
            await self._insert(connection, owner, response, stored, None)
            await self._extend_conversation(connection, response, stored)
        if not await self._database.rows("SELECT 1 FROM holders WHERE id = ?", (response.id,)):
            raise RequestError(
                "The response is larger than the space that is left to its key: responses may use a quarter "
                "of the size of --data-dir.",
                status=507,
                code="storage_full",
            )

    async def begin(self, owner: str, response: Response, items: Sequence[Item]) -> None:
        """Stores a response that this process will compute in the background."""
        await self._end_interrupted()
        if self._alive is None:
            with storage_errors(CONTENTS):
                self._alive = AliveFile(self._directory)
        stored = await asyncio.to_thread(encoded, items)
        async with self._database.transaction() as connection:
            await self._insert(connection, owner, response, stored, self._alive.token)

    async def finish(self, response: Response, items: Sequence[Item], events: bytes) -> bool:
        """Stores the end of a background response and all events of its stream.

        False if the response was cancelled or deleted before.
        """
        packed = await asyncio.to_thread(zlib.compress, events, 1)
        stored = await asyncio.to_thread(encoded, items, response.output)
        async with self._database.transaction() as connection:
            if not await self._end(connection, response, [item for item in stored if item.is_output]):
                return False
            await connection.execute("UPDATE holders SET events = ? WHERE id = ?", (packed, response.id))
            await self._extend_conversation(connection, response, stored)
        return True

    async def keep_events(self, id: str, events: bytes) -> None:
        """Stores the events of a background response that another process has cancelled."""
        packed = await asyncio.to_thread(zlib.compress, events, 1)
        async with self._database.transaction() as connection:
            await connection.execute("UPDATE holders SET events = ? WHERE id = ?", (packed, id))

    async def events(self, owner: str, id: str) -> list[bytes] | None:
        """The events of a background response; None if it has none."""
        (packed,) = await self._found(owner, id, "events")
        return None if packed is None else await asyncio.to_thread(_unpacked, packed)

    async def status(self, owner: str, id: str) -> str:
        """Raises a 404 `RequestError` if the owner has no such response."""
        status, runner, body = await self._found(owner, id, "status, runner, body")
        if status in _OPEN and not (runner and is_alive(self._directory, runner)):
            interrupted = _interrupted(body)
            async with self._database.transaction() as connection:
                await self._end(connection, interrupted)
            return interrupted.status
        return str(status)

    async def response(self, owner: str, id: str) -> bytes:
        """The JSON of a response. Raises a 404 `RequestError` if the owner has no such response."""
        await self.status(owner, id)
        (body,) = await self._found(owner, id, "body")
        rows = await self._database.rows(
            "SELECT body FROM items WHERE holder = ? AND is_output = 1 ORDER BY place", (id,)
        )
        fields = _fields.decode(body)
        fields["output"] = Raw(_encode([Raw(row[0]) for row in rows]))
        return _encode(fields)

    async def cancel(self, owner: str, id: str) -> None:
        """Ends a background response of another process as cancelled, unless it has ended."""
        await self.status(owner, id)
        (body,) = await self._found(owner, id, "body")
        response = msgspec.json.decode(body, type=Response)
        async with self._database.transaction() as connection:
            await self._end(connection, structs.replace(response, status="cancelled"))

    async def input_items(self, owner: str, id: str, page: PageQuery) -> list[Row]:
        """The id and JSON of the items on a page of a response's input, and of one item more unless it is the
        last page."""
        await self._found(owner, id, "id")
        return await item_rows(self._database, id, page, with_output=False)

    async def delete(self, owner: str, id: str) -> None:
        """Deletes a response or conversation. Raises a 404 `RequestError` if the owner has no such one."""
        await self._found(owner, id, "id")
        async with self._database.transaction() as connection:
            await connection.execute("DELETE FROM holders WHERE id = ?", (id,))

    async def earlier_items(self, owner: str, id: str) -> list[bytes]:
        """The JSON of the items of a response and of all responses before it, in their order.

        Raises `RequestError` if one of them is not stored, or if the last one can't be continued.
        """
        param = "previous_response_id"
        await self._found(owner, id, "id", param)
        status = await self.status(owner, id)
        (body,) = await self._found(owner, id, "body", param)
        if status not in ("completed", "incomplete"):
            problem = f"{param} is {id!r}, whose status is {status!r}: only a response with an answer"
            raise RequestError(f"{problem} can be continued.", param=param, code="invalid_value")
        if (conversation := msgspec.json.decode(body, type=Response).conversation) is not None:
            raise RequestError(
                f"{param} is {id!r}, which belongs to a conversation: give conversation as "
                f"{conversation.id!r} instead.",
                param=param,
                code="invalid_value",
            )
        chain = await self._database.rows(
            f"{_CHAIN} SELECT id, previous FROM chain ORDER BY depth", (id, owner)
        )
        if (lost := chain[-1][1]) is not None:
            raise RequestError(
                f"{param} is {id!r}, but {lost!r}, which came before it, is no longer stored: send the whole "
                "conversation as input.",
                status=404,
                param=param,
                code="not_found",
            )
        async with self._database.transaction() as connection:
            await connection.execute(
                f"{_CHAIN} UPDATE holders SET used = ? WHERE id IN (SELECT id FROM chain)",
                (id, owner, time.time()),
            )
        rows = await self._database.rows(
            f"{_CHAIN} SELECT items.body FROM chain JOIN items ON items.holder = chain.id "
            "ORDER BY depth DESC, place",
            (id, owner),
        )
        return [row[0] for row in rows]

    async def referenced(self, owner: str, ids: Collection[str]) -> dict[str, Item]:
        """The owner's stored items with these ids."""
        found: dict[str, Item] = {}
        for id in ids:
            rows = await self._database.rows(
                "SELECT items.body FROM items JOIN holders ON holders.id = items.holder "
                "WHERE items.id = ? AND holders.owner = ? LIMIT 1",
                (id, owner),
            )
            if rows:
                found[id] = _items.decode(rows[0][0])
        return found

    # Conversations.

    async def add_conversation(self, owner: str, id: str, body: bytes, items: Sequence[StoredItem]) -> None:
        async with self._database.transaction() as connection:
            await connection.execute(
                "INSERT INTO holders (id, owner, used, body) VALUES (?, ?, ?, ?)",
                (id, owner, time.time(), body),
            )
            await add_items(connection, id, items)

    async def conversation(self, owner: str, id: str, param: str | None = None) -> bytes:
        (body,) = await self._found(owner, id, "body", param)
        return bytes(body)

    async def change_conversation(self, owner: str, id: str, body: bytes) -> None:
        await self._found(owner, id, "id")
        async with self._database.transaction() as connection:
            await connection.execute(
                "UPDATE holders SET body = ?, used = ? WHERE id = ?", (body, time.time(), id)
            )

    async def add_to_conversation(self, owner: str, id: str, items: Sequence[StoredItem]) -> None:
        await self._found(owner, id, "id")
        async with self._database.transaction() as connection:
            await _touch(connection, id)
            await add_items(connection, id, items)

    async def conversation_page(self, owner: str, id: str, page: PageQuery) -> list[Row]:
        """The id and JSON of the items on a page of a conversation, and of one item more unless it is the
        last page."""
        await self._found(owner, id, "id")
        return await item_rows(self._database, id, page, with_output=True)

    async def conversation_item(self, owner: str, id: str, item: str) -> bytes:
        """The JSON of an item. Raises a 404 `RequestError` if the conversation has no such item."""
        await self._found(owner, id, "id")
        rows = await self._database.rows(
            "SELECT body FROM items INDEXED BY by_id WHERE id = ? AND holder = ?", (item, id)
        )
        if not rows:
            raise RequestError(f"The conversation has no item {item[:100]!r}.", status=404, code="not_found")
        return bytes(rows[0][0])

    async def conversation_items(self, owner: str, id: str) -> list[bytes]:
        """The JSON of all items of a conversation."""
        await self._found(owner, id, "id", "conversation")
        rows = await self._database.rows("SELECT body FROM items WHERE holder = ? ORDER BY place", (id,))
        async with self._database.transaction() as connection:
            await _touch(connection, id)
        return [row[0] for row in rows]

    async def delete_item(self, owner: str, id: str, item: str) -> None:
        async with self._database.transaction() as connection:
            await connection.execute("DELETE FROM items WHERE holder = ? AND id = ?", (id, item))

    async def close(self) -> None:
        await self._database.close()
        if self._alive is not None:
            self._alive.close()

    async def _end_interrupted(self) -> None:
        """Ends, once, the responses of processes that have ended, so that they can be evicted.

        If the database fails or the caller is cancelled, the next call tries again.
        """
        if self._has_begun:
            return
        self._has_begun = True
        try:
            await self._end_those_of_dead_processes()
        except (RequestError, asyncio.CancelledError):
            self._has_begun = False
            raise

    async def _end_those_of_dead_processes(self) -> None:
        named = await self._database.rows("SELECT DISTINCT runner FROM holders WHERE runner IS NOT NULL")
        ended = [runner for (runner,) in named if not is_alive(self._directory, runner)]
        if ended:
            async with self._database.transaction() as connection:
                for runner in ended:
                    await self._end_all_of(connection, runner)

    async def _end_all_of(self, connection: aiosqlite.Connection, runner: str) -> None:
        rows = await connection.execute_fetchall("SELECT body FROM holders WHERE runner = ?", (runner,))
        for (body,) in rows:
            await self._end(connection, _interrupted(body))

    async def _found(self, owner: str, id: str, columns: str, param: str | None = None) -> Row:
        """The columns of a holder. Raises a 404 `RequestError` if the owner has no such one."""
        rows = await self._database.rows(
            f"SELECT {columns} FROM holders WHERE id = ? AND owner = ? AND used >= ?",
            (id, owner, time.time() - MOST_AGE_S),
        )
        if not rows:
            what = "conversation" if id.startswith("conv_") else "response"
            raise RequestError(
                f"There is no {what} {id[:100]!r}: it was never stored, it was deleted, or it is older than "
                "this server keeps it.",
                status=404,
                param=param,
                code="not_found",
            )
        return rows[0]

    async def _insert(
        self,
        connection: aiosqlite.Connection,
        owner: str,
        response: Response,
        items: Sequence[StoredItem],
        runner: str | None,
    ) -> None:
        previous, status = response.previous_response_id, response.status
        await connection.execute(
            "INSERT INTO holders (id, owner, used, previous, status, runner, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (response.id, owner, time.time(), previous, status, runner, _body(response)),
        )
        await add_items(connection, response.id, items)

    async def _end(
        self, connection: aiosqlite.Connection, response: Response, output: Sequence[StoredItem] = ()
    ) -> bool:
        """Stores the end of a background response; False if it has ended already, or was deleted."""
        done = await connection.execute(
            "UPDATE holders SET status = ?, body = ?, used = ?, runner = NULL "
            "WHERE id = ? AND status IN ('queued', 'in_progress')",
            (response.status, _body(response), time.time(), response.id),
        )
        if done.rowcount != 1:
            return False
        await add_items(connection, response.id, output)
        return True

    async def _extend_conversation(
        self, connection: aiosqlite.Connection, response: Response, items: Sequence[StoredItem]
    ) -> None:
        """Adds the input and output of a response to its conversation, if that still exists."""
        if response.conversation is None or response.status not in ("completed", "incomplete"):
            return
        id = response.conversation.id
        if await _touch(connection, id):
            await add_items(connection, id, items)


def _interrupted(body: bytes) -> Response:
    return failed(msgspec.json.decode(body, type=Response), _INTERRUPTED)


def _body(response: Response) -> bytes:
    return _encode(structs.replace(response, output=[]))


def _unpacked(packed: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in zlib.decompress(packed).split(b"\n\n")[:-1]]


async def _touch(connection: aiosqlite.Connection, id: str) -> bool:
    """Marks a holder as used; False if it does not exist."""
    done = await connection.execute("UPDATE holders SET used = ? WHERE id = ?", (time.time(), id))
    return done.rowcount == 1
