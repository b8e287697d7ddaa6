"""Stored batches and the results of their lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from ....runtime.errors import RequestError
from ..records.alive import is_alive
from ..records.paging import PageQuery
from ..records.record_store import reads, writes
from ..records.transaction import OPEN_STATES, Part, Record, Transaction, missing_record
from .file_store import KEPT_SECONDS, FileStore, OutputFile, add_output, find_file
from .objects import BatchObject, Errors, LineError, RequestCounts, Status, StoredBatch

BATCH = "batch"
RESULT, FAILURE = "result", "failure"
"""The kinds of a batch's parts, which are output lines. A part's place is the number of its input line."""
NO_OUTPUTS: Mapping[str, OutputFile] = {}
_encode = msgspec.json.encode


class BatchStore:
    """The batches in a data directory. `files` are stored beside them.

    All methods raise `RequestError` if the disk or the database fails.
    """

    def __init__(self, directory: Path, data_size: int, *, shares: bool) -> None:
        """shares: several keys share the space"""
        self.directory = directory
        self.files = FileStore(directory, data_size, shares=shares)
        self.records = self.files.records

    # Called by requests.

    @writes
    def create(self, transaction: Transaction, batch: StoredBatch, max_open: int) -> BatchObject:
        """Adds a batch. Raises `RequestError` without its input file, or beyond `max_open` open batches."""
        find_file(transaction, batch.input_file_id, batch.owner, "input_file_id")
        if [record.owner for record in transaction.list_open(BATCH)].count(batch.owner) >= max_open:
            raise RequestError(
                f"{max_open} batches have not ended yet: wait for one of them, or cancel it.",
                status=429,
                code="too_many_batches",
            )
        expires, source = batch.created_at + 2 * KEPT_SECONDS, batch.input_file_id
        record = Record(BATCH, batch.id, batch.owner, 0, expires, batch.status, None, source, _encode(batch))
        return _show(transaction.add(record))

    @reads
    def find(self, transaction: Transaction, id: str, owner: str) -> BatchObject:
        """Finds a batch. Raises a 404 `RequestError` if the owner has no batch with this id."""
        return _show(_find(transaction, id, owner))

    @reads
    def list_page(self, transaction: Transaction, owner: str, page: PageQuery) -> list[tuple[str, bytes]]:
        """The id and JSON of the batches on a page, and of one more unless it is the last page."""
        return transaction.list_records(owner, (BATCH,), page)

    @writes
    def cancel(self, transaction: Transaction, id: str, owner: str) -> BatchObject:
        """Asks the batch's runner to stop, unless the batch is ending already. Returns the changed batch."""
        record = _find(transaction, id, owner)
        if record.state in ("validating", "in_progress"):
            record = _set_status(transaction, record, "cancelling")
        return _show(record)

    # Called by the runner of a batch.

    async def claim(
        self, runner: str, models: Collection[str], owners: Collection[str], max_of_owner: int
    ) -> StoredBatch | None:
        """Assigns an open batch whose runner is not alive. Its model and owner must be among the given ones,
        unless it has no more lines to run. The owner with the fewest running batches comes first, then the
        oldest batch."""

        def choose(transaction: Transaction) -> Record | None:
            records = transaction.list_open(BATCH)
            runners = {record.runner for record in records if record.runner is not None}
            alive = {token for token in runners if is_alive(self.directory, token)}
            running = Counter(record.owner for record in records if record.runner in alive)

            def may_run(record: Record) -> bool:
                batch = _decode(record)
                is_wanted = batch.model in models and batch.owner in owners
                is_ending = record.state in ("cancelling", "finalizing") or batch.expires_at <= time.time()
                return is_ending or (is_wanted and running[batch.owner] < max_of_owner)

            waiting = [record for record in records if record.runner not in alive and may_run(record)]
            return min(waiting, key=lambda record: (running[record.owner], record.number), default=None)

        def claim(transaction: Transaction) -> StoredBatch | None:
            record = choose(transaction)
            return record and _decode(transaction.change(record, runner=runner))

        if await self.records.read(choose) is None:
            return None
        return await self.records.write(claim)

    @reads
    def read_states(self, transaction: Transaction, runner: str) -> dict[str, str]:
        """The status of each open batch that the runner has claimed."""
        records = transaction.list_open(BATCH)
        return {record.id: record.state for record in records if record.runner == runner}

    @writes
    def release(self, transaction: Transaction, id: str, runner: str) -> None:
        """Lets any runner claim the batch."""
        if (record := _find_own(transaction, id, runner)) is not None:
            transaction.change(record, runner=None)

    @writes
    def begin(self, transaction: Transaction, id: str, runner: str, total: int) -> bool:
        """Starts a batch whose file is valid. False if another runner has it, or it was cancelled."""
        record = _find_own(transaction, id, runner, "validating")
        if record is not None:
            _set_status(transaction, record, "in_progress", request_counts=RequestCounts(total, 0, 0))
        return record is not None

    @reads
    def list_finished(self, transaction: Transaction, id: str) -> set[int]:
        """The numbers of the lines that have a result."""
        statement = "SELECT place FROM parts JOIN records ON number = record WHERE records.id = ?"
        return {number for (number,) in transaction.rows(statement, (id,))}

    @writes
    def add_result(self, transaction: Transaction, id: str, number: int, failed: bool, line: bytes) -> int:
        """Stores a line's result unless it has one already, or the batch has ended.

        Returns the bytes that the owner may still use.
        """
        record = transaction.find(BATCH, id)
        if record is None:
            return 0
        has_result = transaction.rows(
            "SELECT 1 FROM parts WHERE record = ? AND place = ?", (record.number, number)
        )
        if record.state in ("in_progress", "cancelling") and not has_result:
            part = Part(FAILURE if failed else RESULT, None, line, number)
            record = transaction.add_parts(record, [part], copies=2)
            batch = _decode(record)
            batch.request_counts.failed += failed
            batch.request_counts.completed += not failed
            transaction.change(record, body=_encode(batch))
        return transaction.left(record.owner)

    @writes
    def finalize(self, transaction: Transaction, id: str, runner: str) -> bool:
        """Marks a batch whose lines have results. False if another runner has it, or it was cancelled."""
        record = _find_own(transaction, id, runner, "in_progress", "finalizing")
        if record is not None:
            _set_status(transaction, record, "finalizing")
        return record is not None

    async def end(
        self,
        id: str,
        runner: str,
        status: Status,
        outputs: Mapping[str, OutputFile] = NO_OUTPUTS,
        mistakes: Sequence[LineError] = (),
        failed: int = 0,
    ) -> bool:
        """Ends the batch, adds its output files and removes its results. False if another runner has it.

        outputs: the files by the fields that name them
        failed: the number of lines without an answer or with an error
        """

        def end(transaction: Transaction) -> bool:
            record = _find_own(transaction, id, runner)
            if record is None:
                return False
            batch = _decode(record)
            for file in outputs.values():
                add_output(transaction, batch, file)
            transaction.rows("DELETE FROM parts WHERE record = ?", (record.number,))
            record = transaction.change(record, runner=None, size=0)
            fields = {name: file.id for name, file in outputs.items()}
            counts = structs.replace(batch.request_counts, failed=failed)
            errors = Errors([*mistakes]) if mistakes else None
            _set_status(transaction, record, status, request_counts=counts, errors=errors, **fields)
            return True

        is_ended = await self.records.write(end)
        await self.records.sweep()
        return is_ended


def _find(transaction: Transaction, id: str, owner: str) -> Record:
    record = transaction.find(BATCH, id, owner)
    if record is None:
        raise missing_record("batch", id, "id", "batch_not_found")
    return record


def _find_own(transaction: Transaction, id: str, runner: str, *states: str) -> Record | None:
    """The batch if this runner has claimed it and it is in one of `states` (default: any open state)."""
    record = transaction.find(BATCH, id)
    is_own = record is not None and record.runner == runner and record.state in (states or OPEN_STATES)
    return record if is_own else None


def _set_status(transaction: Transaction, record: Record, status: Status, **fields: Any) -> Record:
    """Gives a batch a status, the time of that change, and values of other fields."""
    batch = _decode(record)
    fields[f"{status}_at"] = getattr(batch, f"{status}_at") or int(time.time())
    batch = structs.replace(batch, status=status, **fields)
    return transaction.change(record, state=status, body=_encode(batch))


def _decode(record: Record) -> StoredBatch:
    return msgspec.json.decode(record.body, type=StoredBatch)


def _show(record: Record) -> BatchObject:
    """The batch for clients, without the fields that only the store needs."""
    return msgspec.json.decode(record.body, type=BatchObject)
