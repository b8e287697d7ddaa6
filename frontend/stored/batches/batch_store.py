"""Stored batches and the results of their lines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from ....runtime.errors import RequestError
from ..records.alive import is_alive
from ..records.paging import PageQuery
from ..records.transaction import OPEN_STATES, Part, Record, Transaction
from .file_store import KEPT_SECONDS, FileStore, OutputFile, add_output, find_file
from .objects import BatchObject, Errors, LineError, Status, StoredBatch

BATCH = "batch"
RESULT, FAILURE = "result", "failure"
"""the kinds of the parts of a batch: the output lines of its input's lines, whose numbers are their places"""
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

    # Batches, for requests.

    async def create(self, batch: StoredBatch, max_open: int) -> None:
        """Raises `RequestError` if the input file does not exist, or its owner has `max_open` batches."""

        def create(transaction: Transaction) -> None:
            if find_file(transaction, batch.input_file_id, batch.owner) is None:
                raise RequestError(
                    f"There is no file {batch.input_file_id[:100]!r}: upload one as input_file_id.",
                    status=404,
                    param="input_file_id",
                    code="file_not_found",
                )
            if transaction.count(batch.owner, BATCH, OPEN_STATES) >= max_open:
                raise RequestError(
                    f"{max_open} batches have not ended yet: wait for one of them, or cancel it.",
                    status=429,
                    code="too_many_batches",
                )
            expires = batch.created_at + 2 * KEPT_SECONDS
            source = batch.input_file_id
            transaction.add(
                Record(BATCH, batch.id, batch.owner, 0, expires, batch.status, None, source, _encode(batch))
            )

        await self.records.write(create)

    async def find(self, id: str, owner: str) -> BatchObject | None:
        record = await self.records.read(lambda transaction: transaction.find(BATCH, id, owner))
        return None if record is None else _show_batch(record.body)

    async def list_page(self, owner: str, page: PageQuery) -> list[tuple[str, bytes]]:
        """The id and JSON of the batches on a page, and of one more unless it is the last page."""
        return await self.records.read(lambda transaction: transaction.list_records(owner, (BATCH,), page))

    async def cancel(self, id: str, owner: str) -> BatchObject | None:
        """Asks the batch's runner to stop, unless the batch ends already. Returns the batch as it then is."""

        def cancel(transaction: Transaction) -> BatchObject | None:
            record = transaction.find(BATCH, id, owner)
            if record is None:
                return None
            if record.state in ("validating", "in_progress"):
                record = _set_status(transaction, record, "cancelling")
            return _show_batch(record.body)

        return await self.records.write(cancel)

    # Batches, for their runner.

    async def claim(
        self, runner: str, models: Collection[str], owners: Collection[str], max_of_owner: int
    ) -> StoredBatch | None:
        """Assigns an open batch whose runner is not alive. Its model and owner must be among these, unless it
        runs no more lines.

        Owners with fewer batches under way come first, then the oldest batch.
        """

        def choose(transaction: Transaction) -> Record | None:
            records = transaction.list_open(BATCH)
            runners = {record.runner for record in records if record.runner is not None}
            alive = {token for token in runners if is_alive(self.directory, token)}
            running = Counter(record.owner for record in records if record.runner in alive)

            def may_run(record: Record) -> bool:
                batch = _decode_batch(record)
                return (
                    record.state in ("cancelling", "finalizing")
                    or batch.expires_at <= time.time()
                    or (
                        running[batch.owner] < max_of_owner
                        and batch.model in models
                        and batch.owner in owners
                    )
                )

            waiting = [record for record in records if record.runner not in alive and may_run(record)]
            return min(waiting, key=lambda record: (running[record.owner], record.number), default=None)

        def claim(transaction: Transaction) -> StoredBatch | None:
            record = choose(transaction)
            return record and _decode_batch(transaction.change(record, runner=runner))

        if await self.records.read(choose) is None:
            return None
        return await self.records.write(claim)

    async def read_states(self, runner: str) -> dict[str, str]:
        """The status of each open batch that the runner has."""
        records = await self.records.read(lambda transaction: transaction.list_open(BATCH))
        return {record.id: record.state for record in records if record.runner == runner}

    async def release(self, id: str, runner: str) -> None:
        """Lets any runner claim the batch."""

        def release(transaction: Transaction) -> None:
            if (record := _find_own(transaction, id, runner)) is not None:
                transaction.change(record, runner=None)

        await self.records.write(release)

    async def begin(self, id: str, runner: str, total: int) -> bool:
        """Starts a batch whose file is valid. False if another runner has it, or it was cancelled."""

        def begin(transaction: Transaction) -> bool:
            record = _find_own(transaction, id, runner, "validating")
            if record is None:
                return False
            counts = structs.replace(_decode_batch(record).request_counts, total=total)
            _set_status(transaction, record, "in_progress", request_counts=counts)
            return True

        return await self.records.write(begin)

    async def list_finished(self, id: str) -> set[int]:
        """The numbers of the lines that have a result."""
        statement = "SELECT place FROM parts JOIN records ON number = record WHERE records.id = ?"
        return {number for (number,) in await self.records.read(lambda each: each.rows(statement, (id,)))}

    async def add_result(self, id: str, number: int, failed: bool, line: bytes) -> int:
        """Stores a line's result unless it has one already, or the batch has ended.

        Returns the bytes that the owner may still use.
        """

        def add(transaction: Transaction) -> int:
            record = transaction.find(BATCH, id)
            if record is None:
                return 0
            if record.state in ("in_progress", "cancelling") and not transaction.has_part(record, number):
                part = Part(FAILURE if failed else RESULT, None, line, number)
                record = transaction.add_parts(record, [part], copies=2)
                batch = _decode_batch(record)
                batch.request_counts.failed += failed
                batch.request_counts.completed += not failed
                transaction.change(record, body=_encode(batch))
            return transaction.left(record.owner)

        return await self.records.write(add)

    async def finalize(self, id: str, runner: str) -> bool:
        """Marks a batch whose lines have results. False if another runner has it, or it was cancelled."""

        def finalize(transaction: Transaction) -> bool:
            record = _find_own(transaction, id, runner, "in_progress", "finalizing")
            if record is not None:
                _set_status(transaction, record, "finalizing")
            return record is not None

        return await self.records.write(finalize)

    async def end(
        self,
        id: str,
        runner: str,
        status: Status,
        *,
        output: OutputFile | None = None,
        errors: OutputFile | None = None,
        failed: int | None = None,
        mistakes: Sequence[LineError] = (),
    ) -> bool:
        """Ends the batch, adds its files and removes its results. False if another runner has it.

        failed: the number of lines in the file of errors; None: the batch has not begun
        """

        def end(transaction: Transaction) -> bool:
            record = _find_own(transaction, id, runner)
            if record is None:
                return False
            batch = _decode_batch(record)
            for file in (output, errors):
                if file is not None:
                    add_output(transaction, batch, file)
            counts = batch.request_counts
            if failed is not None:
                counts = structs.replace(counts, failed=failed)
            transaction.delete_parts(record)
            record = transaction.change(record, runner=None)
            _set_status(
                transaction,
                record,
                status,
                output_file_id=output and output.id,
                error_file_id=errors and errors.id,
                request_counts=counts,
                errors=Errors([*mistakes]) if mistakes else None,
            )
            return True

        is_ended = await self.records.write(end)
        await self.records.sweep()
        return is_ended


def _find_own(transaction: Transaction, id: str, runner: str, *states: str) -> Record | None:
    """The batch, if this runner has it and it is in one of the states, or in any that is open."""
    record = transaction.find(BATCH, id)
    is_own = record is not None and record.runner == runner and record.state in (states or OPEN_STATES)
    return record if is_own else None


def _set_status(transaction: Transaction, record: Record, status: Status, **fields: Any) -> Record:
    """Gives a batch a status, the time of that change, and values of other fields."""
    batch = _decode_batch(record)
    fields[f"{status}_at"] = getattr(batch, f"{status}_at") or int(time.time())
    batch = structs.replace(batch, status=status, **fields)
    return transaction.change(record, state=status, body=_encode(batch))


def _decode_batch(record: Record) -> StoredBatch:
    return msgspec.json.decode(record.body, type=StoredBatch)


def _show_batch(body: bytes) -> BatchObject:
    """Without the fields that only the store needs."""
    return msgspec.json.decode(body, type=BatchObject)
