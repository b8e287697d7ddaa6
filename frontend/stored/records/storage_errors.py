"""Turns failures of a database and its disk into errors of a request."""

from __future__ import annotations

import contextlib
import errno
import logging
import sqlite3
from collections.abc import Iterator

from ....runtime.errors import RequestError

_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
"""the latter where the index of the write-ahead log finds no space"""
log = logging.getLogger(__name__)


@contextlib.contextmanager
def storage_errors(contents: str) -> Iterator[None]:
    """Raises `RequestError` (503, 507) for failures of the disk and the database. The log gets them with
    their paths.

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
