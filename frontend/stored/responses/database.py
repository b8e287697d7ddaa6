"""The tables of stored responses and conversations, and the limits on their size and age."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import aiosqlite

from ..database import file_at, open_database
from ..database.errors import storage_errors
from ..database.space import bytes_in_use, shrink

NAME = "responses"
VERSION = 2
MOST_AGE_S = 30 * 24 * 3600
SHARE = 4
"""Responses may use 1 / SHARE of the size of --data-dir."""
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
    events BLOB,
    bytes INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX by_use ON holders (used);
CREATE INDEX by_owner ON holders (owner, used);
CREATE INDEX by_runner ON holders (runner) WHERE runner IS NOT NULL;
CREATE TABLE items (
    holder TEXT NOT NULL REFERENCES holders (id) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    id TEXT NOT NULL,
    is_output INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (holder, place)
) WITHOUT ROWID;
CREATE INDEX by_id ON items (id);
CREATE TABLE owners (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER holder_added AFTER INSERT ON holders BEGIN
    INSERT OR IGNORE INTO owners VALUES (NEW.owner, 0);
    UPDATE holders SET bytes = length(NEW.body) WHERE id = NEW.id;
END;
CREATE TRIGGER holder_changed AFTER UPDATE OF body, events ON holders BEGIN
    UPDATE holders
    SET bytes = bytes + length(NEW.body) - length(OLD.body)
        + coalesce(length(NEW.events), 0) - coalesce(length(OLD.events), 0)
    WHERE id = NEW.id;
END;
CREATE TRIGGER holder_resized AFTER UPDATE OF bytes ON holders BEGIN
    UPDATE owners SET bytes = bytes + NEW.bytes - OLD.bytes WHERE owner = NEW.owner;
END;
CREATE TRIGGER holder_deleted AFTER DELETE ON holders BEGIN
    UPDATE owners SET bytes = bytes - OLD.bytes WHERE owner = OLD.owner;
    DELETE FROM owners WHERE owner = OLD.owner AND bytes = 0;
END;
CREATE TRIGGER item_added AFTER INSERT ON items BEGIN
    UPDATE holders SET bytes = bytes + length(NEW.body) WHERE id = NEW.holder;
END;
CREATE TRIGGER item_deleted AFTER DELETE ON items BEGIN
    UPDATE holders SET bytes = bytes - length(OLD.body) WHERE id = OLD.holder;
END
"""
"""A holder is a response or a conversation. `used` is in seconds since 1970. The `bytes` of a holder are
those of its body, its events and its items; the `bytes` of an owner are those of its holders."""

_OLDEST_OF_LARGEST_OWNER = """
SELECT id, bytes FROM holders
WHERE runner IS NULL AND owner = (
    SELECT owner FROM owners
    WHERE EXISTS (SELECT 1 FROM holders WHERE holders.owner = owners.owner AND runner IS NULL)
    ORDER BY bytes DESC LIMIT 1
)
ORDER BY used LIMIT ?
"""
CONTENTS = "responses"
log = logging.getLogger(__name__)
Row = Sequence[Any]


class Database:
    """One connection, opened when it is first used, and again when the file at its path is another one.
    Transactions follow each other."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        """most_bytes: the size of --data-dir"""
        self._directory = directory
        self._path = directory / f"{NAME}.sqlite"
        self._file: tuple[int, int] | None = None
        self._most_bytes = most_bytes // SHARE
        self._connection: aiosqlite.Connection | None = None
        self._lock = asyncio.Lock()
        self._swept = 0.0

    async def rows(self, statement: str, values: Iterable[Any] = ()) -> list[Row]:
        with storage_errors(CONTENTS):
            async with self._lock:
                connection = await self._opened()
            return list(await connection.execute_fetchall(statement, tuple(values)))

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        """A transaction whose end also removes holders that are too old, or that exceed the limit on bytes.

        Raises `RequestError` if the disk or the database fails.
        """
        with storage_errors(CONTENTS):
            async with self._lock:
                connection = await self._opened()
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
        """The connection to the file at the path. Needs the lock; after it, a statement that begins before
        the next await comes before a later close."""
        if self._connection is not None and (self._file is None or file_at(self._path) != self._file):
            log.warning("%s was removed or replaced: opening what is there now", self._path)
            await self.close()
        if self._connection is None:
            self._connection = await open_database(self._directory, NAME, SCHEMA, VERSION)
            self._file = file_at(self._path)
        return self._connection

    async def _sweep(self, connection: aiosqlite.Connection) -> None:
        now = time.time()
        if now >= self._swept + _BETWEEN_SWEEPS_S:
            self._swept = now
            await connection.execute("DELETE FROM holders WHERE used < ?", (now - MOST_AGE_S,))
        while (excess := await bytes_in_use(connection) - self._most_bytes) > 0:
            if not await _evict(connection, excess):
                break
        await shrink(connection)


async def _evict(connection: aiosqlite.Connection, excess: int) -> bool:
    """Deletes the least recently used holders of the owner with the most bytes. False if there are none.

    So an owner that has less than an even share of the space loses nothing to the others.
    """
    evicted = []
    for id, size in await connection.execute_fetchall(_OLDEST_OF_LARGEST_OWNER, (_EVICTED_AT_ONCE,)):
        if excess > 0:
            evicted.append(id)
            excess -= size
    await connection.execute(
        "DELETE FROM holders WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(evicted),)
    )
    return bool(evicted)


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
