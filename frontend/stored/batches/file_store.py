"""Stored files: the inputs and outputs of batches. Each belongs to an owner."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import structs

from ....runtime.errors import RequestError
from ..records.paging import PageQuery
from ..records.record_store import RecordStore, reads, writes
from ..records.transaction import INCOMPLETE, Record, Transaction, missing_record
from .objects import FileObject, StoredBatch

CONTENTS = "files and batches"
SHARE = 2
"""Files and batches may use 1 / SHARE of the size of --data-dir."""
KEPT_SECONDS = 30 * 24 * 3600
"""Maximum and default seconds for which a file is kept. Batches are kept twice as long."""
UPLOAD_SECONDS = 120
"""Seconds without progress after which an upload is removed, because its process must have been killed."""
INPUT_FILE, OUTPUT_FILE = "input_file", "output_file"
PURPOSES = {"batch": INPUT_FILE, "batch_output": OUTPUT_FILE}
"""The kind of a file's record, by the purpose of the file."""
_COMPLETE = "complete"
_encode = msgspec.json.encode


class OutputFile(NamedTuple):
    """A new output file of a batch. `size` is in bytes."""

    id: str
    filename: str
    size: int


class FileStore:
    """The files in a data directory. The results of batches use the same space. Each result counts twice,
    because it is copied to a file at the end.

    All methods raise `RequestError` if the disk or the database fails.
    """

    def __init__(self, directory: Path, data_size: int, *, shares: bool) -> None:
        """shares: several keys share the space"""
        self._directory = directory / "files"
        self._shares = shares
        self._max_bytes = data_size // SHARE
        self.records = RecordStore(
            directory / "batches.sqlite", CONTENTS, self._max_bytes, shares=shares, files=self._directory
        )

    def path(self, id: str) -> Path:
        return self._directory / id

    @reads
    def left(self, transaction: Transaction, owner: str) -> int:
        """The bytes that the owner's files and results may still use; negative if they use too much."""
        return transaction.left(owner)

    @writes
    def begin(self, transaction: Transaction, id: str, owner: str, size: int, max_open: int) -> None:
        """Adds an incomplete file, which requests do not see.

        size: the file's expected bytes

        Raises a 507 `RequestError` if they exceed what its owner may still use, a 429 one if the owner has
        `max_open` incomplete files.
        """
        if size > transaction.left(owner):
            raise self._full()
        now = int(time.time())
        ((uploads,),) = transaction.rows(
            "SELECT count(*) FROM records WHERE owner = ? AND kind = ? AND state = ? AND expires > ?",
            (owner, INPUT_FILE, INCOMPLETE, now),
        )
        if uploads >= max_open:
            raise RequestError(
                f"{max_open} uploads have not ended yet: wait for one of them.",
                status=429,
                code="too_many_uploads",
            )
        file = FileObject(id=id, bytes=0, created_at=now, expires_at=now, filename="", purpose="batch")
        expires = now + UPLOAD_SECONDS
        transaction.add(Record(INPUT_FILE, id, owner, 0, expires, INCOMPLETE, None, None, _encode(file)))

    @writes
    def reserve(self, transaction: Transaction, id: str, owner: str, size: int) -> None:
        """Lets an incomplete file grow to `size` bytes. Raises a 507 `RequestError` if its owner lacks the
        space, or if the file was removed meanwhile.
        """
        record = transaction.find(INPUT_FILE, id, owner)
        if record is None or size - record.size > transaction.left(owner):
            raise self._full()
        transaction.change(record, size=size, expires=time.time() + UPLOAD_SECONDS)

    def _full(self) -> RequestError:
        limit = f"Files and batches may use {self._max_bytes} bytes on this server"
        limit += " (half of the size of --data-dir)"
        if self._shares:
            limit += ", and those of one key no more than stays free"
        return RequestError(
            f"{limit}; this file exceeds that: delete files that you no longer need.",
            status=507,
            code="storage_full",
        )

    @writes
    def finish(
        self, transaction: Transaction, id: str, owner: str, filename: str, size: int, seconds: int
    ) -> FileObject | None:
        """Makes a file visible for the given `seconds`. None if the file was removed meanwhile."""
        record = transaction.find(INPUT_FILE, id, owner)
        if record is None:
            return None
        file = _decode(record)
        expires = file.created_at + seconds
        file = structs.replace(file, filename=filename, bytes=size, expires_at=expires)
        transaction.change(record, size=size, expires=expires, state=_COMPLETE, body=_encode(file))
        return file

    @reads
    def find(self, transaction: Transaction, id: str, owner: str) -> FileObject:
        """Finds a file. Raises a 404 `RequestError` if the owner has no file with this id."""
        return _decode(find_file(transaction, id, owner))

    @reads
    def list_page(
        self, transaction: Transaction, owner: str, purpose: str | None, page: PageQuery
    ) -> list[tuple[str, bytes]]:
        """The id and JSON of the files on a page, and of one more unless it is the last page."""
        kinds = [kind for name, kind in PURPOSES.items() if purpose in (None, name)]
        return transaction.list_records(owner, kinds, page)

    async def delete(self, id: str, owner: str) -> None:
        """Hides the file, and removes it once no open batch reads it.

        Raises a 404 `RequestError` if the owner has no such file.
        """
        await self._expire(id, owner)
        await self.records.sweep()

    @writes
    def _expire(self, transaction: Transaction, id: str, owner: str) -> None:
        transaction.change(find_file(transaction, id, owner), expires=0)

    async def remove(self, id: str) -> None:
        """Removes an incomplete file."""
        await self.records.write(lambda transaction: transaction.delete([id]))
        await asyncio.to_thread(self.path(id).unlink, missing_ok=True)

    @reads
    def remove_orphans(self, transaction: Transaction, min_age_seconds: float) -> None:
        """Removes files without a record, except new ones, which may belong to an ending batch."""
        known = {id for (id,) in transaction.rows("SELECT id FROM records")}
        for path in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                is_old = path.stat().st_mtime < time.time() - min_age_seconds
                if is_old and path.name not in known:
                    path.unlink()


def find_file(transaction: Transaction, id: str, owner: str, param: str = "id") -> Record:
    """The owner's file. Raises a 404 `RequestError` naming `param` if there is none, or it is incomplete."""
    record = transaction.find(INPUT_FILE, id, owner) or transaction.find(OUTPUT_FILE, id, owner)
    if record is None or record.state == INCOMPLETE:
        raise missing_record("file", id, param, "file_not_found")
    return record


def add_output(transaction: Transaction, batch: StoredBatch, file: OutputFile) -> None:
    now = int(time.time())
    expires = now + batch.output_seconds
    shown = FileObject(
        id=file.id,
        bytes=file.size,
        created_at=now,
        expires_at=expires,
        filename=file.filename,
        purpose="batch_output",
    )
    transaction.add(
        Record(OUTPUT_FILE, file.id, batch.owner, file.size, expires, _COMPLETE, None, None, _encode(shown))
    )


def _decode(record: Record) -> FileObject:
    return msgspec.json.decode(record.body, type=FileObject)
