"""Opens the database that lists files and batches, and stores the results of lines."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

from ....runtime.config import ServeConfig
from ....runtime.errors import RequestError
from ..database import open_database
from ..database.errors import storage_errors
from .schema import NAME, SCHEMA, VERSION
from .store import Store

SHARE = 2
"""Files and batches may use 1 / SHARE of the size of --data-dir."""
CONTENTS = "files and batches"


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
    with storage_errors(CONTENTS):
        connection = await open_database(directory, NAME, SCHEMA, VERSION)
        connection.row_factory = sqlite3.Row
        try:
            files = directory / "files"
            files.mkdir(mode=0o700, exist_ok=True)
            yield Store(connection, files, config.data_size // SHARE, shares=config.has_several_keys)
        finally:
            await connection.close()
