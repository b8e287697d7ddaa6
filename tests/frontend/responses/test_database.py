"""The transactions of stored responses and conversations."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from arbora.frontend.responses.database import Database

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
