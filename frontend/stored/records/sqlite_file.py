"""Opens a SQLite database in the data directory, and turns its failures into errors of a request."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ....runtime.errors import RequestError

BUSY_S = 10.0
"""Seconds that a statement waits for another connection to end its transaction."""
LOG_BYTES = 4 * 1024 * 1024
"""Maximum bytes of the write-ahead log that stay on the disk once its pages are in the database's file."""
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
"""Errors of a full disk. The second one comes if the write-ahead log's index finds no space."""
_PRAGMAS = f"PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON; PRAGMA journal_size_limit = {LOG_BYTES};"
log = logging.getLogger(__name__)


def open_database(path: Path, schema: str, version: int) -> sqlite3.Connection:
    """Opens the database. A new one gets the tables of the statements `schema`.

    Only the server's user may read it. All servers that use the directory share it. Any thread may use the
    connection, one at a time. Raises OSError if the file can't be opened, or if its tables have another
    `version`.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with _lock_file(path.with_suffix(".lock")):
            # Closing a descriptor of a database ends all locks that this process has on it: only a new file
            # is opened here.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
                _remove_logs(path)
            connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                _prepare(connection, path, schema, version)
            except BaseException:
                connection.close()
                raise
        return connection
    except sqlite3.Error as error:
        message = f"{path}: {error}"
        raise (OSError(errno.ENOSPC, message) if is_full(error) else OSError(message)) from error
    except UnicodeDecodeError as error:  # sqlite3 quotes the damaged name of a table in its message
        raise OSError(f"{path}: its schema is damaged") from error


def identify_file(path: Path) -> tuple[int, int] | None:
    """The device and inode of the file at a path; None if there is no file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _remove_logs(path: Path) -> None:
    """Removes the log of a database that was removed, which processes may still have open: they would share
    its index with the new one."""
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _prepare(connection: sqlite3.Connection, path: Path, schema: str, version: int) -> None:
    """Creates the tables of a new database. Raises OSError if it has tables of another version."""
    ((found,),) = connection.execute("PRAGMA user_version")
    connection.executescript(_PRAGMAS)
    if found == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN IMMEDIATE; {schema}; PRAGMA user_version = {version}; COMMIT;")
    elif found != version:
        raise OSError(
            f"{path}: it has version {found} of its tables, and this server needs {version}: move the file "
            "away with its -wal and -shm, or give another --data-dir"
        )


@contextlib.contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    """Waits until no other process or thread holds the lock on this file.

    SQLite refuses the change to a write-ahead log while another connection reads the file.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def storage_errors(contents: str) -> Iterator[None]:
    """Turns failures of the disk and the database into `RequestError`s (503, 507). Logs them with their
    paths.

    contents: what is stored, such as "responses"
    """
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        log.error("%s: %s", contents, error)
        raise storage_error(error, contents) from error


def storage_error(error: OSError | sqlite3.Error, contents: str) -> RequestError:
    if is_full(error):
        return RequestError(
            "The server's disk is full, so it can't store this. Tell its operator.",
            status=507,
            code="disk_full",
        )
    return RequestError(
        f"The server can't use its database of {contents}; its log has the reason. Tell its operator.",
        status=503,
        code="storage_failed",
    )


def is_full(error: OSError | sqlite3.Error) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", None) in _FULL
