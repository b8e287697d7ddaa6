"""Databases in the data directory."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from arbora.frontend.stored.records import sqlite_file
from arbora.frontend.stored.records.sqlite_file import open_database, storage_error
from arbora.frontend.stored.records.transaction import KEPT_PAGES, Transaction

SCHEMA = "CREATE TABLE IF NOT EXISTS things (name TEXT PRIMARY KEY)"
WRITER = """
import secrets, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from arbora.frontend.stored.records.sqlite_file import open_database

def write(_):
    for _ in range(10):
        connection = open_database(Path(sys.argv[1]), "CREATE TABLE things (name TEXT PRIMARY KEY)", 1)
        connection.execute("INSERT INTO things VALUES (?)", (secrets.token_hex(8),))
        connection.close()

with ThreadPoolExecutor(4) as threads:
    list(threads.map(write, range(4)))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "things.sqlite"


def names(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM things ORDER BY name")]


def test_a_database_outlives_its_connection_and_only_the_user_may_read_it(path: Path) -> None:
    with closing(open_database(path, SCHEMA, 1)) as first:
        first.execute("INSERT INTO things VALUES ('a')")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with closing(open_database(path, SCHEMA, 1)) as second:
        assert names(second) == ["a"]


async def test_servers_may_open_a_new_database_at_once(path: Path) -> None:
    opened = await asyncio.gather(*(asyncio.to_thread(open_database, path, SCHEMA, 1) for _ in range(8)))
    for number, connection in enumerate(opened):
        connection.execute("INSERT INTO things VALUES (?)", (str(number),))
    assert len(names(opened[0])) == 8
    for connection in opened:
        connection.close()


def test_a_database_with_other_tables_is_left_as_it_is(path: Path) -> None:
    open_database(path, SCHEMA, 1).close()
    with pytest.raises(OSError, match="version 1 of its tables, and this server needs 2: move the file away"):
        open_database(path, SCHEMA, 2)
    with closing(open_database(path, SCHEMA, 1)) as connection:
        assert names(connection) == []


def test_a_damaged_database_is_named(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(OSError, match=r"things\.sqlite: file is not a database"):
        open_database(path, SCHEMA, 1)
    assert path.read_bytes().startswith(b"not a database")


def test_a_damaged_name_of_a_table_is_an_error_of_the_file(path: Path) -> None:
    open_database(path, SCHEMA, 1).close()
    data = path.read_bytes()
    start = data.index(b"CREATE TABLE")
    errors = set()
    for position in range(start, start + 40):
        path.write_bytes(data[:position] + b"\xcc" + data[position + 1 :])
        try:
            open_database(path, SCHEMA, 1).close()
        except OSError as error:
            errors.add(str(error))
    assert f"{path}: its schema is damaged" in errors


def test_a_full_disk_is_told_from_other_failures_before_the_first_use(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_file, "_PRAGMAS", "PRAGMA max_page_count = 2")
        with pytest.raises(OSError, match="database or disk is full") as caught:
            open_database(path, SCHEMA, 1)
    assert storage_error(caught.value, "things").code == "disk_full"
    open_database(path, SCHEMA, 1).close()


def test_no_space_for_the_index_of_the_log_is_a_full_disk() -> None:
    """SQLite calls this an I/O error."""
    error = sqlite3.OperationalError("disk I/O error")
    assert storage_error(error, "things").status == 503
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    assert storage_error(error, "things").status == 507


def test_a_database_after_a_removed_one_shares_no_log_with_its_users(path: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(closing(open_database(path, SCHEMA, 1)))
        first.execute("INSERT INTO things VALUES ('a')")
        path.unlink()
        second = stack.enter_context(closing(open_database(path, SCHEMA, 1)))
        first.execute("INSERT INTO things VALUES ('b')")
        second.execute("INSERT INTO things VALUES ('c')")
        assert (names(first), names(second)) == (["a", "b"], ["c"])
        assert second.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_database_is_closed_and_opened_by_several_processes(path: Path) -> None:
    """A descriptor of the file that is closed ends this process's locks, and the log of others is deleted."""
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", WRITER, str(path)) for _ in range(2)
    ]
    assert [await process.wait() for process in processes] == [0, 0]
    with closing(open_database(path, SCHEMA, 1)) as connection:
        assert len(names(connection)) == 2 * 4 * 10


def test_a_database_shrinks_after_rows_are_deleted(path: Path) -> None:
    with closing(open_database(path, SCHEMA, 1)) as connection:
        transaction = Transaction(connection, 0, shares=False)
        rows = [(f"{number}{'x' * 4000}",) for number in range(3000)]
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO things VALUES (?)", rows)
        connection.execute("COMMIT")
        full = path.stat().st_size
        connection.execute("DELETE FROM things")
        while transaction.shrink():
            pass
        assert transaction.rows("PRAGMA freelist_count") == [(KEPT_PAGES,)]
        transaction.rows("PRAGMA wal_checkpoint")
        left = path.stat().st_size
    assert full > 12_000_000 and left < KEPT_PAGES * 4096 + 1_000_000
