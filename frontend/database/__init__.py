"""A SQLite database in the server's data directory."""

from __future__ import annotations

import os
from pathlib import Path

import aiosqlite

BUSY_S = 10.0  # that a statement waits for another process of this or another server


async def open_database(directory: Path, name: str, schema: str, version: int) -> aiosqlite.Connection:
    """Opens the database `name`.sqlite, and makes it with the statements `schema` if it is new.

    Processes may do that at once, so the statements must have no effect on tables that exist.
    Only the user may read it. Every server that uses the directory shares it. Raises OSError if it can't be
    opened, or if another version of Arbora made it with another `version` of the schema.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / f"{name}.sqlite"
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    try:
        connection = await aiosqlite.connect(path, timeout=BUSY_S, isolation_level=None)
    except aiosqlite.Error as error:
        raise OSError(f"{path}: {error}") from error
    try:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = NORMAL")
        await connection.execute("PRAGMA foreign_keys = ON")
        await _make(connection, path, schema, version)
    except BaseException as error:
        await connection.close()
        if isinstance(error, aiosqlite.Error):
            raise OSError(f"{path}: {error}") from error
        raise
    return connection


async def _make(connection: aiosqlite.Connection, path: Path, schema: str, version: int) -> None:
    found = await _version(connection)
    if found == 0:
        await connection.executescript(f"BEGIN IMMEDIATE; {schema}; PRAGMA user_version = {version}; COMMIT;")
    elif found != version:
        raise OSError(
            f"{path}: it has version {found} of its tables, and this server needs {version}: move the file "
            "away, or give another --data-dir"
        )


async def _version(connection: aiosqlite.Connection) -> int:
    async with connection.execute("PRAGMA user_version") as rows:
        row = await rows.fetchone()
    assert row is not None, "the pragma has a value"
    return int(row[0])
