"""The tables of stored responses and conversations, and the limits on their size and age."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import aiosqlite

from ..database import open_database
from ..database.errors import storage_errors

VERSION = 1
MOST_AGE_S = 30 * 24 * 3600
SHARE = 4  # of --data-size: one part in four
_BETWEEN_SWEEPS_S = 60
_EVICTED_AT_ONCE = 16
SCHEMA = """
CREATE TABLE holders (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    used REAL NOT NULL,
    previous TEXT,
    status TEXT,
    runner TEXT,
    body BLOB NOT NULL,
    events BLOB
) WITHOUT ROWID;
CREATE INDEX by_use ON holders (used);
CREATE INDEX by_runner ON holders (runner) WHERE runner IS NOT NULL;
CREATE TABLE items (
    holder TEXT NOT NULL REFERENCES holders (id) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    id TEXT NOT NULL,
    is_output INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (holder, place)
) WITHOUT ROWID;
CREATE INDEX by_id ON items (id)
"""
"""a holder is a response or a conversation; `used` is in seconds since 1970"""

CONTENTS = "responses"
Row = Sequence[Any]


class Database:
    """One connection, opened when it is first used. Transactions follow each other."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory = directory
        self._most_bytes = most_bytes // SHARE
        self._connection: aiosqlite.Connection | None = None
        self._lock = asyncio.Lock()
        self._swept = 0.0

    async def rows(self, statement: str, values: Iterable[Any] = ()) -> list[Row]:
        with storage_errors(CONTENTS):
            connection = await self._opened()
            return list(await connection.execute_fetchall(statement, tuple(values)))

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        """Holders that are too old, or beyond the limit on bytes, are removed at the end. Raises
        `RequestError` if the disk or the database fails."""
        with storage_errors(CONTENTS):
            connection = await self._opened()
            async with self._lock:
                try:
                    await _whole(connection.execute("BEGIN IMMEDIATE"))
                    yield connection
                    await self._sweep(connection)
                    await _whole(connection.execute("COMMIT"))
                except BaseException:
                    await _whole(connection.rollback())  # without effect if no transaction is open
                    raise

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _opened(self) -> aiosqlite.Connection:
        async with self._lock:
            if self._connection is None:
                self._connection = await open_database(self._directory, "responses", SCHEMA, VERSION)
            return self._connection

    async def _sweep(self, connection: aiosqlite.Connection) -> None:
        now = time.time()
        if now >= self._swept + _BETWEEN_SWEEPS_S:
            self._swept = now
            await connection.execute("DELETE FROM holders WHERE used < ?", (now - MOST_AGE_S,))
        while await _bytes_used(connection) > self._most_bytes:
            done = await connection.execute(
                "DELETE FROM holders WHERE id IN "
                "(SELECT id FROM holders WHERE runner IS NULL ORDER BY used LIMIT ?)",
                (_EVICTED_AT_ONCE,),
            )
            if done.rowcount < 1:
                return


async def _whole(work: Coroutine[Any, Any, object]) -> None:
    """Waits until the work has ended, even if the caller is cancelled: SQLite's thread does it anyway."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # else asyncio logs that nothing has read it
        raise cancelled
    task.result()


async def _bytes_used(connection: aiosqlite.Connection) -> int:
    """The bytes of the file's pages that hold something."""
    counts = []
    for name in ("page_count", "freelist_count", "page_size"):
        ((value,),) = await connection.execute_fetchall(f"PRAGMA {name}")
        counts.append(int(value))
    pages, free, size = counts
    return (pages - free) * size
