"""Stored responses. Each belongs to an owner, and other owners can't see it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from msgspec import Raw, structs

from ....runtime.errors import RequestError
from ..records.alive import AliveFile, is_alive
from ..records.paging import PageQuery
from ..records.record_store import RecordStore, reads, writes
from ..records.sqlite_file import storage_errors
from ..records.transaction import OPEN_STATES, Part, Record, Transaction
from .answers import failed
from .conversation_store import ConversationStore
from .protocol import Item
from .responses import Response
from .stored_items import (
    CONVERSATION,
    EVENTS,
    INPUT,
    OUTPUT,
    RESPONSE,
    change_body,
    decode_items,
    encode_items,
    find_record,
    new_expiry,
)

NAME = "responses"
SHARE = 4
"""Responses may use 1 / SHARE of the size of --data-dir."""
_CHAIN = """
WITH RECURSIVE chain (number, source, depth) AS (
    SELECT number, source, 0 FROM records WHERE number = ?1
    UNION ALL
    SELECT records.number, records.source, depth + 1 FROM records JOIN chain ON records.id = chain.source
    WHERE records.owner = ?2
)
"""
_INTERRUPTED = RequestError(
    "The server was stopped while it computed this response: send the request again.", status=500
)
_encode = msgspec.json.encode
_fields = msgspec.json.Decoder(dict[str, Raw])


class ResponseStore:
    """The responses in a data directory. `conversations` are stored beside them.

    All methods raise `RequestError` if the disk or the database fails, and with the status 404 if the owner
    has no such response.
    """

    def __init__(self, directory: Path, data_size: int) -> None:
        self._directory = directory
        self.records = RecordStore(directory / f"{NAME}.sqlite", NAME, data_size // SHARE, evicts=True)
        self.conversations = ConversationStore(self.records)
        self._alive: AliveFile | None = None
        self._has_ended_interrupted = False

    async def add(self, owner: str, response: Response, items: Sequence[Item]) -> None:
        """Stores a response that has ended. `items` are its input. Its conversation gets its items too.

        Raises a 507 `RequestError` for a response that exceeds the owner's share of the space.
        """
        await self._end_interrupted()
        await self._add(owner, response, await asyncio.to_thread(encode_items, items, response.output))

    @writes
    def _add(self, transaction: Transaction, owner: str, response: Response, parts: Sequence[Part]) -> None:
        _add_response(transaction, owner, response, parts, None)
        _extend_conversation(transaction, owner, response, parts)
        transaction.evict()
        if transaction.find(RESPONSE, response.id, owner) is None:
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
            with storage_errors(NAME):
                self._alive = AliveFile(self._directory)
        runner = self._alive.token
        parts = await asyncio.to_thread(encode_items, items)
        await self.records.write(
            lambda transaction: _add_response(transaction, owner, response, parts, runner)
        )

    async def finish(self, owner: str, response: Response, items: Sequence[Item], events: bytes) -> bool:
        """Stores the end of a background response and all events of its stream.

        False if the response was cancelled or deleted before.
        """
        packed = await asyncio.to_thread(_pack_events, events)
        parts = await asyncio.to_thread(encode_items, items, response.output)
        return await self._finish(owner, response, parts, packed)

    @writes
    def _finish(
        self, transaction: Transaction, owner: str, response: Response, parts: Sequence[Part], events: Part
    ) -> bool:
        record = transaction.find(RESPONSE, response.id, owner)
        if record is None or record.state not in OPEN_STATES:
            return False
        output = [part for part in parts if part.kind == OUTPUT]
        transaction.add_parts(_end(transaction, record, response), [*output, events])
        _extend_conversation(transaction, owner, response, parts)
        return True

    async def add_events(self, owner: str, id: str, events: bytes) -> None:
        """Stores the events of a background response that another process has cancelled."""
        await self._add_part(owner, id, await asyncio.to_thread(_pack_events, events))

    @writes
    def _add_part(self, transaction: Transaction, owner: str, id: str, part: Part) -> None:
        transaction.add_parts(find_record(transaction, RESPONSE, owner, id), [part])

    async def read_events(self, owner: str, id: str) -> list[bytes] | None:
        """The events of a background response; None if it has none."""
        packed = await self._read_parts(owner, id, EVENTS)
        return await asyncio.to_thread(_unpack_events, packed[0]) if packed else None

    async def read_status(self, owner: str, id: str) -> str:
        return (await self._find(owner, id)).state

    async def read_response(self, owner: str, id: str) -> bytes:
        """The JSON of a response."""
        fields = _fields.decode((await self._find(owner, id)).body)
        output = await self._read_parts(owner, id, OUTPUT)
        fields["output"] = Raw(_encode([Raw(body) for body in output]))
        return _encode(fields)

    @writes
    def cancel(self, transaction: Transaction, owner: str, id: str) -> None:
        """Ends a background response of another process as cancelled, unless it has ended."""
        record = self._end_if_interrupted(transaction, find_record(transaction, RESPONSE, owner, id))
        if record.state in OPEN_STATES:
            _end(transaction, record, structs.replace(_decode(record), status="cancelled"))

    @writes
    def delete(self, transaction: Transaction, owner: str, id: str) -> None:
        transaction.delete([find_record(transaction, RESPONSE, owner, id).id])

    @reads
    def list_input(
        self, transaction: Transaction, owner: str, id: str, page: PageQuery
    ) -> list[tuple[str, bytes]]:
        """The id and JSON of the items on a page of a response's input, and of one item more unless it is the
        last page."""
        return transaction.list_parts(find_record(transaction, RESPONSE, owner, id), (INPUT,), page)

    @writes
    def read_earlier_items(self, transaction: Transaction, owner: str, id: str) -> list[bytes]:
        """The JSON of the items of a response and of all responses before it, in their order.

        Raises `RequestError` if one of them is not stored, or if the last one can't be continued.
        """
        param = "previous_response_id"
        record = self._end_if_interrupted(transaction, find_record(transaction, RESPONSE, owner, id, param))
        _check_continuable(record)
        chain = (record.number, owner)
        sources = transaction.rows(f"{_CHAIN} SELECT source FROM chain ORDER BY depth", chain)
        if (lost := sources[-1][0]) is not None:
            raise RequestError(
                f"{param} is {id!r}, but {lost!r}, which came before it, is no longer stored: send the whole "
                "conversation as input.",
                status=404,
                param=param,
                code="not_found",
            )
        transaction.rows(
            f"{_CHAIN} UPDATE records SET expires = ?3 WHERE number IN (SELECT number FROM chain)",
            (*chain, new_expiry()),
        )
        rows = transaction.rows(
            f"{_CHAIN} SELECT body FROM chain JOIN parts ON parts.record = chain.number "
            "WHERE kind IN (?3, ?4) ORDER BY depth DESC, place",
            (*chain, INPUT, OUTPUT),
        )
        return [body for (body,) in rows]

    @reads
    def find_items(self, transaction: Transaction, owner: str, ids: Collection[str]) -> dict[str, Item]:
        """The owner's stored items with these ids."""
        rows = [
            row
            for id in ids
            for row in transaction.rows(
                "SELECT parts.id, parts.body FROM parts JOIN records ON number = record "
                "WHERE parts.id = ? AND owner = ? LIMIT 1",
                (id, owner),
            )
        ]
        return dict(zip([id for id, _ in rows], decode_items(body for _, body in rows), strict=True))

    async def close(self) -> None:
        await self.records.close()
        if self._alive is not None:
            self._alive.close()

    async def _find(self, owner: str, id: str) -> Record:
        """Finds a response. Ends it as failed if its process died before its end."""
        record = await self.records.read(lambda transaction: find_record(transaction, RESPONSE, owner, id))
        if not self._is_interrupted(record):
            return record
        return await self.records.write(lambda transaction: self._end_if_interrupted(transaction, record))

    @reads
    def _read_parts(self, transaction: Transaction, owner: str, id: str, kind: str) -> list[bytes]:
        return transaction.read_parts(find_record(transaction, RESPONSE, owner, id), kind)

    def _is_interrupted(self, record: Record) -> bool:
        is_open = record.state in OPEN_STATES
        return is_open and not (record.runner and is_alive(self._directory, record.runner))

    def _end_if_interrupted(self, transaction: Transaction, record: Record) -> Record:
        """Ends a response as failed if its process died before its end."""
        record = transaction.find(RESPONSE, record.id) or record
        if not self._is_interrupted(record):
            return record
        return _end(transaction, record, failed(_decode(record), _INTERRUPTED))

    async def _end_interrupted(self) -> None:
        """On its first call, ends the open responses of dead processes, so that they can be evicted."""
        if not self._has_ended_interrupted:
            if await self.records.read(lambda transaction: transaction.list_open(RESPONSE)):
                await self._end_all_interrupted()
            self._has_ended_interrupted = True

    @writes
    def _end_all_interrupted(self, transaction: Transaction) -> None:
        for record in transaction.list_open(RESPONSE):
            self._end_if_interrupted(transaction, record)


def _check_continuable(record: Record) -> None:
    problem = f"previous_response_id is {record.id!r}"
    if record.state not in ("completed", "incomplete"):
        problem += f", whose status is {record.state!r}: only a response with an answer can be continued."
    elif (conversation := _decode(record).conversation) is not None:
        problem += f", which belongs to a conversation: give conversation as {conversation.id!r} instead."
    else:
        return
    raise RequestError(problem, param="previous_response_id", code="invalid_value")


def _add_response(
    transaction: Transaction, owner: str, response: Response, parts: Sequence[Part], runner: str | None
) -> None:
    body = _encode(structs.replace(response, output=[]))
    previous = response.previous_response_id
    record = Record(
        RESPONSE, response.id, owner, len(body), new_expiry(), response.status, runner, previous, body
    )
    transaction.add_parts(transaction.add(record), parts)


def _end(transaction: Transaction, record: Record, response: Response) -> Record:
    """Stores the end of a background response, without its output."""
    record = transaction.change(record, state=response.status, runner=None, expires=new_expiry())
    return change_body(transaction, record, _encode(structs.replace(response, output=[])))


def _extend_conversation(
    transaction: Transaction, owner: str, response: Response, parts: Sequence[Part]
) -> None:
    """Adds the input and output of a response to its conversation, if that still exists."""
    if response.conversation is None or response.status not in ("completed", "incomplete"):
        return
    record = transaction.find(CONVERSATION, response.conversation.id, owner)
    if record is not None:
        transaction.add_parts(transaction.change(record, expires=new_expiry()), parts)


def _decode(record: Record) -> Response:
    return msgspec.json.decode(record.body, type=Response)


def _pack_events(events: bytes) -> Part:
    return Part(EVENTS, None, zlib.compress(events, 1))


def _unpack_events(packed: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in zlib.decompress(packed).split(b"\n\n")[:-1]]
