"""Stored conversations. Each belongs to an owner, and other owners can't see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....runtime.errors import RequestError
from ..records.paging import PageQuery
from ..records.record_store import RecordStore
from ..records.transaction import Part, Record, Transaction
from .stored_items import (
    CONVERSATION,
    INPUT,
    OUTPUT,
    change_body,
    delete_record,
    find_record,
    list_items,
    new_expiry,
)


class ConversationStore:
    """All methods raise `RequestError` if the disk or the database fails, and with the status 404 if the
    owner has no such conversation."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    async def add(self, owner: str, id: str, body: bytes, items: Sequence[Part]) -> None:
        def add(transaction: Transaction) -> None:
            record = Record(CONVERSATION, id, owner, len(body), new_expiry(), "", None, None, body)
            transaction.add_parts(transaction.add(record), items)

        await self._records.write(add)

    async def read(self, owner: str, id: str) -> bytes:
        """The JSON of a conversation, without its items."""
        record = await self._records.read(
            lambda transaction: find_record(transaction, CONVERSATION, owner, id)
        )
        return record.body

    async def change(self, owner: str, id: str, body: bytes) -> None:
        await self._use(owner, id, lambda transaction, record: change_body(transaction, record, body))

    async def delete(self, owner: str, id: str) -> None:
        await self._records.write(lambda transaction: delete_record(transaction, CONVERSATION, owner, id))

    async def add_items(self, owner: str, id: str, items: Sequence[Part]) -> None:
        await self._use(owner, id, lambda transaction, record: transaction.add_parts(record, items))

    async def list_items(self, owner: str, id: str, page: PageQuery) -> list[tuple[str, bytes]]:
        """The id and JSON of the items on a page, and of one item more unless it is the last page."""
        return await self._records.read(
            lambda transaction: list_items(
                transaction, find_record(transaction, CONVERSATION, owner, id), page, INPUT, OUTPUT
            )
        )

    async def read_all_items(self, owner: str, id: str) -> list[bytes]:
        """The JSON of all items, to continue the conversation."""
        param = "conversation"
        await self._use(owner, id, lambda *_: None, param)
        return await self._records.read(
            lambda transaction: transaction.read_parts(
                find_record(transaction, CONVERSATION, owner, id, param), INPUT, OUTPUT
            )
        )

    async def read_item(self, owner: str, id: str, item: str) -> bytes:
        """The JSON of an item. Raises a 404 `RequestError` if the conversation has no such item."""

        def read(transaction: Transaction) -> bytes:
            body = transaction.find_part(find_record(transaction, CONVERSATION, owner, id), item)
            if body is None:
                raise RequestError(
                    f"The conversation has no item {item[:100]!r}.", status=404, code="not_found"
                )
            return body

        return await self._records.read(read)

    async def delete_item(self, owner: str, id: str, item: str) -> None:
        await self._use(owner, id, lambda transaction, record: transaction.delete_part(record, item))

    async def _use(
        self, owner: str, id: str, work: Callable[[Transaction, Record], object], param: str | None = None
    ) -> None:
        """Does `work` on a conversation, which is kept for 30 more days."""

        def use(transaction: Transaction) -> None:
            record = find_record(transaction, CONVERSATION, owner, id, param)
            work(transaction, transaction.change(record, expires=new_expiry()))

        await self._records.write(use)
