"""The records of one feature in a SQLite database, which all processes with the same data directory share."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from .sqlite_file import identify_file, open_database, storage_errors
from .transaction import SCHEMA, VERSION, Transaction

_BETWEEN_SWEEPS_S = 60
T = TypeVar("T")
P = ParamSpec("P")
log = logging.getLogger(__name__)


class RecordStore:
    """One database connection, opened at its first use, and again if another file is at its path.

    A thread of its own runs its transactions, one after another.
    """

    def __init__(
        self,
        path: Path,
        contents: str,
        max_bytes: int,
        *,
        evicts: bool = False,
        shares: bool = False,
        files: Path | None = None,
    ) -> None:
        """contents: what is stored, such as "responses", for messages
        max_bytes: the limit of bytes for all records together
        evicts: beyond the limit, old records are deleted. Otherwise the feature asks `Transaction.left`.
        shares: several keys share the bytes
        files: the directory where a record may have a file, named by its id and deleted with it
        """
        self.path = path
        self._contents = contents
        self._max_bytes = max_bytes
        self._evicts = evicts
        self._shares = shares
        self._files = files
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._thread = ThreadPoolExecutor(1, "arbora-records")
        self._swept = 0.0

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """The result of `work`, whose statements all see the same state. Raises `RequestError` (503, 507)."""
        return await self._run("BEGIN", work)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """The result of `work`. If it raises an error or the caller is cancelled, nothing has changed.

        Raises `RequestError` (503, 507) if the disk or the database fails.
        """
        return await self._run("BEGIN IMMEDIATE", work)

    async def sweep(self) -> None:
        """Deletes expired records and their files now. Otherwise `write` does so once a minute."""
        self._swept = 0.0
        await self.write(lambda _: None)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def _run(self, begin: str, work: Callable[[Transaction], T]) -> T:
        is_cancelled = threading.Event()
        loop = asyncio.get_running_loop()
        with storage_errors(self._contents):
            try:
                return await loop.run_in_executor(self._thread, self._transact, begin, work, is_cancelled)
            except asyncio.CancelledError:
                is_cancelled.set()
                raise

    def _transact(self, begin: str, work: Callable[[Transaction], T], is_cancelled: threading.Event) -> T:
        """Runs a transaction on the store's thread. The error that ends a cancelled one reaches nobody."""
        connection = self._open()
        transaction = Transaction(connection, self._max_bytes, self._shares)
        expired: list[str] = []
        connection.execute(begin)
        try:
            result = work(transaction)
            if begin != "BEGIN":
                expired = self._tidy(transaction)
            if is_cancelled.is_set():
                raise RuntimeError("cancelled")
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()  # does nothing if no transaction is open
            raise
        if self._files is not None:
            for id in expired:
                (self._files / id).unlink(missing_ok=True)
        return result

    def _tidy(self, transaction: Transaction) -> list[str]:
        """Deletes records beyond their age or the space. Returns the ids of the expired ones."""
        expired: list[str] = []
        if time.time() >= self._swept + _BETWEEN_SWEEPS_S:
            self._swept = time.time()
            expired = transaction.delete_expired()
        if self._evicts:
            transaction.evict()
        transaction.shrink()
        return expired

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and identify_file(self.path) != self._identity:
            log.warning("%s was removed or replaced: opening what is there now", self.path)
            self._close()
        if self._connection is None:
            self._connection = open_database(self.path, SCHEMA, VERSION)
            if self._files is not None:
                self._files.mkdir(exist_ok=True, mode=0o700)
            self._identity = identify_file(self.path)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class HasRecords(Protocol):
    @property
    def records(self) -> RecordStore: ...


S = TypeVar("S", bound=HasRecords)


def reads(
    method: Callable[Concatenate[S, Transaction, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Makes a method async: it runs as one `read` transaction of its object's `records`."""

    @wraps(method)
    async def read(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.records.read(lambda transaction: method(self, transaction, *args, **kwargs))

    return read


def writes(
    method: Callable[Concatenate[S, Transaction, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Makes a method async: it runs as one `write` transaction of its object's `records`."""

    @wraps(method)
    async def write(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.records.write(lambda transaction: method(self, transaction, *args, **kwargs))

    return write
