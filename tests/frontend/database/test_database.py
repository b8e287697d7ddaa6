"""Databases in the data directory."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
from arbora.frontend.database import open_database

SCHEMA = "CREATE TABLE IF NOT EXISTS things (name TEXT PRIMARY KEY)"


async def test_a_database_outlives_its_connection_and_only_the_user_may_read_it(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    first = await open_database(directory, "things", SCHEMA, 1)
    await first.execute("INSERT INTO things VALUES ('a')")
    await first.close()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "things.sqlite").stat().st_mode) == 0o600
    second = await open_database(directory, "things", SCHEMA, 1)
    rows = await second.execute_fetchall("SELECT name FROM things")
    assert [tuple(row) for row in rows] == [("a",)]
    await second.close()


async def test_servers_may_open_a_new_database_at_once(tmp_path: Path) -> None:
    opened = await asyncio.gather(*(open_database(tmp_path, "things", SCHEMA, 1) for _ in range(8)))
    for number, connection in enumerate(opened):
        await connection.execute("INSERT INTO things VALUES (?)", (str(number),))
    (row,) = await opened[0].execute_fetchall("SELECT count(*) FROM things")
    assert row[0] == 8
    await asyncio.gather(*(connection.close() for connection in opened))


async def test_a_database_with_other_tables_is_left_as_it_is(tmp_path: Path) -> None:
    await (await open_database(tmp_path, "things", SCHEMA, 1)).close()
    with pytest.raises(OSError, match="version 1 of its tables, and this server needs 2"):
        await open_database(tmp_path, "things", SCHEMA, 2)


async def test_a_damaged_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "things.sqlite"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(OSError, match=r"things\.sqlite: file is not a database"):
        await open_database(tmp_path, "things", SCHEMA, 1)
    assert path.read_bytes().startswith(b"not a database")
