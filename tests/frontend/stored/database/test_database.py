"""Databases in the data directory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import stat
import sys
from pathlib import Path

import pytest
from arbora.frontend.stored import database
from arbora.frontend.stored.database import open_database
from arbora.frontend.stored.database.errors import storage_error
from arbora.frontend.stored.database.space import KEPT_PAGES, free_pages, shrink

SCHEMA = "CREATE TABLE IF NOT EXISTS things (name TEXT PRIMARY KEY)"
WRITER = """
import asyncio, secrets, sys
from pathlib import Path
from arbora.frontend.stored.database import open_database

async def write():
    for _ in range(10):
        connection = await open_database(
            Path(sys.argv[1]), "things", "CREATE TABLE things (name TEXT PRIMARY KEY)", 1
        )
        await connection.execute("INSERT INTO things VALUES (?)", (secrets.token_hex(8),))
        await connection.close()

async def main():
    await asyncio.gather(*(write() for _ in range(4)))

asyncio.run(main())
"""


async def test_no_value_is_logged_even_where_debug_messages_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        connection = await open_database(tmp_path, "things", SCHEMA, 1)
        await connection.execute("INSERT INTO things VALUES (?)", ("a private text",))
        await connection.close()
    assert "private" not in caplog.text


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


async def test_a_full_disk_is_told_from_other_failures_before_the_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(database, "_PRAGMAS", "PRAGMA max_page_count = 2")
        with pytest.raises(OSError, match="database or disk is full") as caught:
            await open_database(tmp_path, "things", SCHEMA, 1)
    assert storage_error(caught.value, "things").code == "disk_full"
    await (await open_database(tmp_path, "things", SCHEMA, 1)).close()


def test_no_space_for_the_index_of_the_log_is_a_full_disk() -> None:
    """SQLite calls this an I/O error."""
    error = sqlite3.OperationalError("disk I/O error")
    assert storage_error(error, "things").status == 503
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    assert storage_error(error, "things").status == 507


async def test_a_database_after_a_removed_one_shares_no_log_with_its_users(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = await open_database(tmp_path, "things", SCHEMA, 1)
        stack.push_async_callback(first.close)
        await first.execute("INSERT INTO things VALUES ('a')")
        (tmp_path / "things.sqlite").unlink()
        second = await open_database(tmp_path, "things", SCHEMA, 1)
        stack.push_async_callback(second.close)
        await first.execute("INSERT INTO things VALUES ('b')")
        await second.execute("INSERT INTO things VALUES ('c')")
        for connection, names in ((first, ["a", "b"]), (second, ["c"])):
            rows = await connection.execute_fetchall("SELECT name FROM things ORDER BY name")
            assert [row[0] for row in rows] == names
        assert list(await second.execute_fetchall("PRAGMA integrity_check")) == [("ok",)]


async def test_a_database_is_closed_and_opened_by_several_processes(tmp_path: Path) -> None:
    """A descriptor of the file that is closed ends this process's locks, and the log of others is deleted."""
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", WRITER, str(tmp_path))
        for _ in range(2)
    ]
    assert [await process.wait() for process in processes] == [0, 0]
    connection = await open_database(tmp_path, "things", SCHEMA, 1)
    (row,) = await connection.execute_fetchall("SELECT count(*) FROM things")
    await connection.close()
    assert row[0] == 2 * 4 * 10


async def test_a_database_shrinks_after_rows_are_deleted(tmp_path: Path) -> None:
    connection = await open_database(tmp_path, "things", SCHEMA, 1)
    rows = [(f"{number}{'x' * 4000}",) for number in range(3000)]
    await connection.executemany("INSERT INTO things VALUES (?)", rows)
    full = (tmp_path / "things.sqlite").stat().st_size
    await connection.execute("DELETE FROM things")
    while await shrink(connection):
        pass
    assert await free_pages(connection) == KEPT_PAGES
    await connection.execute_fetchall("PRAGMA wal_checkpoint")
    left = (tmp_path / "things.sqlite").stat().st_size
    await connection.close()
    assert full > 12_000_000 and left < KEPT_PAGES * 4096 + 1_000_000
