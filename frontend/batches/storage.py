"""Opens the database of files and batches, and turns its failures into errors of a request."""

from __future__ import annotations

import contextlib
import errno
import logging
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from ...runtime.config import ServeConfig
from ...runtime.errors import RequestError
from ..database import open_database
from .schema import NAME, SCHEMA, VERSION
from .store import Store

SHARE = 2
"""Files and batches may use one part in so many of --data-size."""
log = logging.getLogger(__name__)


def data_directory(config: ServeConfig) -> Path:
    """Raises `RequestError` if the server has none."""
    if config.data_dir is None:
        raise RequestError(
            "This server stores no files and no batches (--data-dir off): start it with another --data-dir.",
            code="data_dir_off",
        )
    return config.data_dir


def database_path(config: ServeConfig) -> Path:
    return data_directory(config) / f"{NAME}.sqlite"


@contextlib.asynccontextmanager
async def open_store(config: ServeConfig) -> AsyncIterator[Store]:
    """The store, closed at the end. Failures of the database become `RequestError` (503, 507)."""
    directory = data_directory(config)
    with storage_errors():
        connection = await open_database(directory, NAME, SCHEMA, VERSION)
        connection.row_factory = sqlite3.Row
        try:
            files = directory / "files"
            files.mkdir(mode=0o700, exist_ok=True)
            yield Store(connection, files, config.data_size // SHARE)
        finally:
            await connection.close()


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """Turns failures of the disk and the database into `RequestError`. The log gets them with their paths."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        log.error("files and batches: %s", error)
        raise storage_error(error) from error


def storage_error(error: OSError | sqlite3.Error) -> RequestError:
    if is_full(error):
        return RequestError(
            "The server's disk is full, so it can't store this. Tell its operator.",
            status=507,
            code="disk_full",
        )
    return RequestError(
        "The server can't use its database of files and batches; its log has the reason. Tell its operator.",
        status=503,
        code="storage_failed",
    )


def is_full(error: OSError | sqlite3.Error) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
