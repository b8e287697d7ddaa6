"""Records and their transactions: all or nothing, once the file is another one too."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from pathlib import Path

import pytest
from arbora.frontend.stored.records.paging import PageQuery
from arbora.frontend.stored.records.record_store import RecordStore
from arbora.frontend.stored.records.transaction import Part, Record, Transaction
from arbora.runtime.errors import RequestError

pytestmark = pytest.mark.asyncio
MAX_BYTES = 1 << 30


def open_records(directory: Path) -> RecordStore:
    return RecordStore(directory / "things.sqlite", "things", MAX_BYTES)


def add(transaction: Transaction, id: str, owner: str = "a", body: bytes = b"") -> Record:
    return transaction.add(Record("thing", id, owner, len(body), time.time() + 60, "", None, None, body))


async def list_ids(records: RecordStore) -> list[str]:
    rows = await records.read(lambda transaction: transaction.rows("SELECT id FROM records ORDER BY id"))
    return [id for (id,) in rows]


async def test_a_transaction_cancelled_while_it_begins_leaves_none_open(tmp_path: Path) -> None:
    records = open_records(tmp_path)
    await records.write(lambda transaction: add(transaction, "first"))
    other = sqlite3.connect(tmp_path / "things.sqlite", isolation_level=None, timeout=0)
    try:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(records.write(lambda transaction: add(transaction, "cancelled")))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.sleep(0.1)
        other.execute("ROLLBACK")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await records.write(lambda transaction: add(transaction, "second"))
        other.execute("BEGIN IMMEDIATE")  # raises if the cancelled transaction holds the lock
        other.execute("ROLLBACK")
        assert await list_ids(records) == ["first", "second"]
    finally:
        other.close()
        await records.close()


async def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    records = open_records(tmp_path)

    def fail(transaction: Transaction) -> None:
        add(transaction, "a")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        await records.write(fail)
    await records.write(lambda transaction: add(transaction, "a"))
    assert await list_ids(records) == ["a"]
    await records.close()


async def test_a_database_that_was_removed_or_replaced_is_opened_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = open_records(tmp_path)
    path = tmp_path / "things.sqlite"
    try:
        await records.write(lambda transaction: add(transaction, "first"))
        path.unlink()
        await records.write(lambda transaction: add(transaction, "second"))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT id FROM records").fetchall() == [("second",)]
        replaced = open_records(tmp_path / "other")
        await replaced.write(lambda transaction: add(transaction, "third"))
        await replaced.close()
        for log in tmp_path.glob("things.sqlite-*"):
            log.unlink()
        (tmp_path / "other" / "things.sqlite").replace(path)
        await records.write(lambda transaction: add(transaction, "fourth"))
        assert await list_ids(records) == ["fourth", "third"]
    finally:
        await records.close()
    assert caplog.text.count("was removed or replaced") == 2


async def test_no_text_is_logged_even_where_debug_messages_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        records = open_records(tmp_path)
        await records.write(lambda transaction: add(transaction, "a", body=b"a private text"))
        await records.close()
    assert "private" not in caplog.text


async def test_the_size_of_an_owner_is_that_of_its_records(tmp_path: Path) -> None:
    records = open_records(tmp_path)

    def change(transaction: Transaction) -> None:
        first, second = add(transaction, "1", body=b"12345"), add(transaction, "2", body=b"123")
        first = transaction.add_parts(first, [Part("item", "x", b"1234"), Part("item", "y", b"12")])
        transaction.delete_parts(first, "id = ?", "x")
        transaction.add_parts(second, [Part("result", None, b"1234", 7)], copies=2)
        add(transaction, "3", "b", b"1")
        transaction.delete(["3"])

    await records.write(change)
    rows = await records.read(lambda transaction: transaction.rows("SELECT owner, size FROM owners"))
    assert rows == [("a", 5 + 2 + 3 + 2 * 4)]
    assert await records.read(lambda transaction: transaction.left("a")) == MAX_BYTES - rows[0][1]
    await records.close()


async def test_records_and_parts_are_listed_in_pages(tmp_path: Path) -> None:
    records = open_records(tmp_path)

    def fill(transaction: Transaction) -> Record:
        for id in "abc":
            add(transaction, id)
        return transaction.add_parts(add(transaction, "d"), [Part("item", id, id.encode()) for id in "wxyz"])

    last = await records.write(fill)

    def list_both(transaction: Transaction) -> list[object]:
        newest, older = PageQuery(2, None, False), PageQuery(2, "c", False)
        return [
            transaction.list_records("a", ["thing"], newest),
            transaction.list_records("a", ["thing"], older),
            transaction.list_parts(last, ["item"], PageQuery(2, "w", True)),
        ]

    def list_after_nothing(transaction: Transaction) -> None:
        none = PageQuery(2, "none", False)
        with pytest.raises(RequestError, match="after is 'none', which is no item of the list"):
            transaction.list_records("a", ["thing"], none)
        with pytest.raises(RequestError, match="after is 'none', which is no item of the list"):
            transaction.list_parts(last, ["item"], none)

    listed = await records.read(list_both)
    assert listed == [
        [("d", b""), ("c", b""), ("b", b"")],
        [("b", b""), ("a", b"")],
        [("x", b"x"), ("y", b"y"), ("z", b"z")],
    ]
    await records.read(list_after_nothing)
    await records.close()
