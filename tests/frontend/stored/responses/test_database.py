"""The transactions of stored responses and conversations."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest
from arbora.frontend.stored.responses.database import Database

pytestmark = pytest.mark.asyncio


async def _add(database: Database, id: str) -> None:
    async with database.transaction() as connection:
        await connection.execute(
            "INSERT INTO holders (id, owner, used, body) VALUES (?, 'a', 1e12, '')", (id,)
        )


async def test_a_transaction_cancelled_while_it_begins_leaves_none_open(tmp_path: Path) -> None:
    database = Database(tmp_path, 1 << 30)
    await _add(database, "first")
    other = sqlite3.connect(tmp_path / "responses.sqlite", isolation_level=None, timeout=0)
    try:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(_add(database, "cancelled"))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.sleep(0.1)
        other.execute("ROLLBACK")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        other.execute("BEGIN IMMEDIATE")  # raises if the cancelled transaction holds the lock
        other.execute("ROLLBACK")
        await _add(database, "second")
        assert [row[0] for row in await database.rows("SELECT id FROM holders")] == ["first", "second"]
    finally:
        other.close()
        await database.close()


async def test_a_database_that_was_removed_or_replaced_is_opened_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(tmp_path, 1 << 30)
    path = tmp_path / "responses.sqlite"
    try:
        await _add(database, "first")
        path.unlink()
        await _add(database, "second")
        assert _ids(path) == ["second"]
        replaced = Database(tmp_path / "other", 1 << 30)
        await _add(replaced, "third")
        await replaced.close()
        for log in tmp_path.glob("responses.sqlite-*"):
            log.unlink()
        (tmp_path / "other" / "responses.sqlite").replace(path)
        await _add(database, "fourth")
        assert [row[0] for row in await database.rows("SELECT id FROM holders")] == ["fourth", "third"]
    finally:
        await database.close()
    assert caplog.text.count("was removed or replaced") == 2


async def test_statements_that_wait_while_the_database_is_opened_again_are_done(tmp_path: Path) -> None:
    database = Database(tmp_path, 1 << 30)
    try:
        await _add(database, "first")
        async with database.transaction() as connection:
            writing = [asyncio.create_task(_add(database, str(number))) for number in range(4)]
            reading = [asyncio.create_task(database.rows("SELECT id FROM holders")) for _ in range(4)]
            await asyncio.sleep(0.01)
            await connection.execute("DELETE FROM holders")
            (tmp_path / "responses.sqlite").unlink()
        await asyncio.gather(*writing, *reading)
        assert _ids(tmp_path / "responses.sqlite") == ["0", "1", "2", "3"]
    finally:
        await database.close()


def _ids(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM holders ORDER BY id")]
