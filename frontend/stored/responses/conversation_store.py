"""Stored conversations. Each belongs to an owner, and other owners can't see it."""

from __future__ import annotations

from collections.abc import Sequence

from ....runtime.errors import RequestError
from ..records.paging import PageQuery
from ..records.record_store import RecordStore, reads, writes
from ..records.transaction import Part, Record, Transaction
from .stored_items import CONVERSATION, INPUT, OUTPUT, change_body, find_record, new_expiry


class ConversationStore:
    """All methods raise `RequestError` if the disk or the database fails, and with the status 404 if the
    owner has no such conversation. A change or a continuation keeps a conversation for 30 more days."""

    def __init__(self, records: RecordStore) -> None:
        self.records = records

    @writes
    def add(self, transaction: Transaction, owner: str, id: str, body: bytes, items: Sequence[Part]) -> None:
        record = Record(CONVERSATION, id, owner, len(body), new_expiry(), "", None, None, body)
        transaction.add_parts(transaction.add(record), items)

    @reads
    def read(self, transaction: Transaction, owner: str, id: str) -> bytes:
        """The JSON of a conversation, without its items."""
        return find_record(transaction, CONVERSATION, owner, id).body

    @writes
    def change(self, transaction: Transaction, owner: str, id: str, body: bytes) -> None:
        change_body(transaction, _use(transaction, owner, id), body)

    @writes
    def delete(self, transaction: Transaction, owner: str, id: str) -> None:
        transaction.delete([find_record(transaction, CONVERSATION, owner, id).id])

    @writes
    def add_items(self, transaction: Transaction, owner: str, id: str, items: Sequence[Part]) -> None:
        transaction.add_parts(_use(transaction, owner, id), items)

    @reads
    def list_items(
        self, transaction: Transaction, owner: str, id: str, page: PageQuery
    ) -> list[tuple[str, bytes]]:
        """The id and JSON of the items on a page, and of one item more unless it is the last page."""
        record = find_record(transaction, CONVERSATION, owner, id)
        return transaction.list_parts(record, (INPUT, OUTPUT), page)

    @writes
    def read_all_items(self, transaction: Transaction, owner: str, id: str) -> list[bytes]:
        """The JSON of all items, to continue the conversation."""
        return transaction.read_parts(_use(transaction, owner, id, "conversation"), INPUT, OUTPUT)

    @reads
    def read_item(self, transaction: Transaction, owner: str, id: str, item: str) -> bytes:
        """The JSON of an item. Raises a 404 `RequestError` if the conversation has no such item."""
        return _find_item(transaction, find_record(transaction, CONVERSATION, owner, id), item)

    @writes
    def delete_item(self, transaction: Transaction, owner: str, id: str, item: str) -> None:
        """Deletes an item. Raises a 404 `RequestError` if the conversation has no item with this id."""
        record = _use(transaction, owner, id)
        _find_item(transaction, record, item)
        transaction.delete_parts(record, "id = ?", item)


def _use(transaction: Transaction, owner: str, id: str, param: str | None = None) -> Record:
    record = find_record(transaction, CONVERSATION, owner, id, param)
    return transaction.change(record, expires=new_expiry())


def _find_item(transaction: Transaction, record: Record, item: str) -> bytes:
    rows = transaction.rows("SELECT body FROM parts WHERE id = ? AND +record = ?", (item, record.number))
    if not rows:
        raise RequestError(f"The conversation has no item {item[:100]!r}.", status=404, code="not_found")
    return bytes(rows[0][0])
