"""The rows of files and batches. Each method that writes is one SQL statement, and so atomic."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, TypeVar

import aiosqlite
import msgspec

from ....runtime.errors import RequestError
from ..database.space import shrink
from .records import BatchRecord, FileRecord, Status
from .schema import ENDED_LIST, OPEN_LIST

KEPT_SECONDS = 30 * 24 * 3600
"""the longest and the default time for which files are kept; ended batches are kept twice as long"""
UPLOAD_SECONDS = 120
"""An upload without progress for so long is removed. Its process was killed."""
Order = Literal["asc", "desc"]
T = TypeVar("T")


def _used(condition: str) -> str:
    """The bytes of files and results. A result counts twice, because it is written to a file at the end."""
    return (
        f"((SELECT coalesce(sum(bytes), 0) FROM files WHERE {condition}) + (SELECT coalesce("
        f"2 * sum(result_bytes), 0) FROM batches WHERE status IN ({OPEN_LIST}) AND {condition}))"
    )


_FREE = f"(:most - {_used('true')})"
_LEFT = f"(CASE WHEN :shares THEN ({_FREE} - {_used('owner = :owner')}) / 2 ELSE {_FREE} END)"
"""The bytes that an owner may still use. If keys share the space, an owner never uses more than it leaves
free, so others find some space at any time."""
_UNUSED_INPUT = f"id NOT IN (SELECT input_file FROM batches WHERE status IN ({OPEN_LIST}))"


class Store:
    """`most_bytes` is the limit of all files and of the results that are not in a file yet.

    shares: several keys share this space
    """

    def __init__(
        self, connection: aiosqlite.Connection, directory: Path, most_bytes: int, *, shares: bool = False
    ) -> None:
        self._connection = connection
        self._space = {"most": most_bytes, "shares": shares}
        self.directory = directory

    def path(self, file: str) -> Path:
        return self.directory / file

    # Files.

    async def begin_file(self, file: str, owner: str, purpose: str, most_open: int) -> None:
        """Adds an incomplete file, which no request sees.

        Raises a 429 `RequestError` if the owner has `most_open` of them.
        """
        now = int(time.time())
        added = await self._write(
            "INSERT INTO files SELECT ?, ?2, ?3, '', 0, ?4, ?, 'incomplete' WHERE "
            "(SELECT count(*) FROM files WHERE owner = ?2 AND purpose = ?3 AND state = 'incomplete' "
            "AND expires_at > ?4) < ?",
            (file, owner, purpose, now, now + UPLOAD_SECONDS, most_open),
        )
        if not added:
            raise RequestError(
                f"{most_open} uploads have not ended yet: wait for one of them.",
                status=429,
                code="too_many_uploads",
            )

    async def check_space(self, owner: str, size: int) -> None:
        """Raises a 507 `RequestError` for a file that exceeds the bytes that its owner may still use."""
        if size > await self.left(owner):
            raise self._full()

    async def reserve(self, file: str, owner: str, size: int) -> None:
        """Lets a file grow to this size. Raises a 507 `RequestError` if its owner may not use so much."""
        values = {"size": size, "until": int(time.time()) + UPLOAD_SECONDS, "file": file, "owner": owner}
        changed = await self._write(
            "UPDATE files SET bytes = max(bytes, :size), expires_at = :until "
            f"WHERE id = :file AND (bytes >= :size OR :size - bytes <= {_LEFT})",
            values | self._space,
        )
        if not changed:
            raise self._full()

    def _full(self) -> RequestError:
        most = self._space["most"]
        limit = f"Files and batches may use {most} bytes on this server (half of the size of --data-dir)"
        if self._space["shares"]:
            limit += ", and those of one key no more than stays free"
        return RequestError(
            f"{limit}; this file exceeds that: delete files that you no longer need.",
            status=507,
            code="storage_full",
        )

    async def finish_file(self, file: str, filename: str, size: int, seconds: int) -> FileRecord | None:
        """Makes the file visible, until it expires in so many seconds. None if it was removed meanwhile."""
        return await self._one(
            FileRecord,
            "UPDATE files SET filename = ?, bytes = ?, expires_at = created_at + ?, state = 'complete' "
            "WHERE id = ? RETURNING *",
            (filename, size, seconds, file),
        )

    async def file(self, file: str, owner: str) -> FileRecord | None:
        return await self._one(
            FileRecord,
            "SELECT * FROM files WHERE id = ? AND owner = ? AND state = 'complete' AND expires_at > ?",
            (file, owner, int(time.time())),
        )

    async def files(
        self, owner: str, purpose: str | None, after: str | None, order: Order, most: int
    ) -> list[FileRecord]:
        condition = "state = 'complete' AND expires_at > :now AND (:purpose IS NULL OR purpose = :purpose)"
        values = {"now": int(time.time()), "purpose": purpose}
        return await self._page(FileRecord, "files", condition, values, owner, after, order, most)

    async def delete_file(self, file: str, owner: str) -> bool:
        """Hides the file. A sweep removes it once no open batch reads it. False if the owner has none."""
        return bool(
            await self._write(
                "UPDATE files SET state = 'deleted' WHERE id = ? AND owner = ? AND state = 'complete'",
                (file, owner),
            )
        )

    async def remove_file(self, file: str) -> None:
        """Removes a file: its content first, because content without a row stays until a runner's sweep."""
        await asyncio.to_thread(self.path(file).unlink, missing_ok=True)
        await self._write("DELETE FROM files WHERE id = ?", (file,))

    async def sweep(self) -> None:
        """Removes expired and deleted files that no open batch reads, and batches that ended long ago."""
        now = int(time.time())
        rows = await self._connection.execute_fetchall(
            f"SELECT id FROM files WHERE (expires_at <= ? OR state = 'deleted') AND {_UNUSED_INPUT}", (now,)
        )
        for row in rows:
            await self.remove_file(row["id"])
        await self._write(
            f"DELETE FROM batches WHERE status IN ({ENDED_LIST}) AND created_at < ?",
            (now - 2 * KEPT_SECONDS,),
        )

    async def known_files(self) -> set[str]:
        return {row["id"] for row in await self._connection.execute_fetchall("SELECT id FROM files")}

    async def left(self, owner: str) -> int:
        """The bytes that the owner's files and results may still use; negative if they use too much."""
        (row,) = await self._connection.execute_fetchall(
            f"SELECT {_LEFT} AS unused", {"owner": owner} | self._space
        )
        return int(row["unused"])

    async def shrink(self) -> None:
        """Removes some free pages from the database's file, if it has many."""
        await shrink(self._connection)

    # Batches, for requests.

    async def create_batch(
        self,
        *,
        owner: str,
        model: str,
        endpoint: str,
        window: str,
        seconds: int,
        input_file: str,
        output_seconds: int,
        metadata: str | None,
        most_open: int,
    ) -> BatchRecord | None:
        """The new batch; None if its owner has too many open ones."""
        now = int(time.time())
        return await self._one(
            BatchRecord,
            "INSERT INTO batches (id, owner, model, endpoint, completion_window, input_file, output_seconds, "
            "metadata, status, created_at, expires_at) SELECT ?, ?2, ?, ?, ?, ?, ?, ?, 'validating', ?, ? "
            f"WHERE (SELECT count(*) FROM batches WHERE owner = ?2 AND status IN ({OPEN_LIST})) < ? "
            "RETURNING *",
            (
                f"batch_{secrets.token_hex(16)}",
                owner,
                model,
                endpoint,
                window,
                input_file,
                output_seconds,
                metadata,
                now,
                now + seconds,
                most_open,
            ),
        )

    async def batch(self, batch: str, owner: str) -> BatchRecord | None:
        return await self._one(
            BatchRecord, "SELECT * FROM batches WHERE id = ? AND owner = ?", (batch, owner)
        )

    async def batches(self, owner: str, after: str | None, most: int) -> list[BatchRecord]:
        return await self._page(BatchRecord, "batches", "true", {}, owner, after, "desc", most)

    async def cancel(self, batch: str, owner: str) -> BatchRecord | None:
        """The batch, now cancelling. None if the owner has no such batch, or it can't be cancelled."""
        return await self._one(
            BatchRecord,
            "UPDATE batches SET status = 'cancelling', cancelling_at = coalesce(cancelling_at, ?) "
            "WHERE id = ? AND owner = ? AND status IN ('validating', 'in_progress', 'cancelling') "
            "RETURNING *",
            (int(time.time()), batch, owner),
        )

    # Batches, for their runner.

    async def claim(
        self,
        runner: str,
        seconds: float,
        models: Collection[str],
        owners: Collection[str],
        most_of_owner: int,
    ) -> BatchRecord | None:
        """Assigns an open batch that no runner has. Its model and owner must be among these, unless it
        runs no more lines.

        Owners with fewer batches under way come first, then the oldest batch.
        """
        now = time.time()
        of_owner = "(SELECT count(*) FROM batches AS other WHERE other.owner = batches.owner AND "
        of_owner += f"other.status IN ({OPEN_LIST}) AND other.lease_until > :now)"
        return await self._one(
            BatchRecord,
            "UPDATE batches SET runner = :runner, lease_until = :until WHERE id = (SELECT id FROM batches "
            f"WHERE status IN ({OPEN_LIST}) AND lease_until <= :now AND ("
            f"status IN ('cancelling', 'finalizing') OR expires_at <= :now OR ({of_owner} < :most AND "
            "model IN (SELECT value FROM json_each(:models)) AND "
            "owner IN (SELECT value FROM json_each(:owners)))) "
            f"ORDER BY {of_owner}, created_at, rowid LIMIT 1) RETURNING *",
            {
                "runner": runner,
                "until": now + seconds,
                "now": now,
                "most": most_of_owner,
                "models": json.dumps(sorted(models)),
                "owners": json.dumps(sorted(owners)),
            },
        )

    async def renew(self, runner: str, seconds: float) -> dict[str, Status]:
        """Extends the runner's leases. Returns the status of each batch that it still has."""
        rows = await self._connection.execute_fetchall(
            f"UPDATE batches SET lease_until = ? WHERE runner = ? AND status IN ({OPEN_LIST}) "
            "RETURNING id, status",
            (time.time() + seconds, runner),
        )
        return {row["id"]: row["status"] for row in rows}

    async def release(self, batch: str, runner: str, seconds: float = 0) -> None:
        """Ends the runner's lease. Any runner may lease the batch after so many seconds."""
        await self._write(
            "UPDATE batches SET runner = '', lease_until = ? WHERE id = ? AND runner = ?",
            (time.time() + seconds, batch, runner),
        )

    async def begin(self, batch: str, runner: str, total: int) -> bool:
        """Starts a batch whose file is valid. False if another runner has it, or it was cancelled."""
        return bool(
            await self._write(
                "UPDATE batches SET status = 'in_progress', in_progress_at = ?, total = ? "
                "WHERE id = ? AND runner = ? AND status = 'validating'",
                (int(time.time()), total, batch, runner),
            )
        )

    async def finished(self, batch: str) -> set[int]:
        """The numbers of the lines that have a result."""
        rows = await self._connection.execute_fetchall("SELECT number FROM results WHERE batch = ?", (batch,))
        return {row["number"] for row in rows}

    async def add_result(self, batch: str, number: int, failed: bool, line: bytes) -> bool:
        """False if the line has a result already, or the batch has ended."""
        return bool(
            await self._write(
                "INSERT OR IGNORE INTO results SELECT ?1, ?2, ?3, ?4 WHERE EXISTS "
                "(SELECT 1 FROM batches WHERE id = ?1 AND status IN ('in_progress', 'cancelling'))",
                (batch, number, int(failed), line),
            )
        )

    async def finalize(self, batch: str, runner: str) -> bool:
        """Marks a batch whose lines have results. False if another runner has it, or it was cancelled."""
        return bool(
            await self._write(
                "UPDATE batches SET status = 'finalizing', finalizing_at = ? "
                "WHERE id = ? AND runner = ? AND status IN ('in_progress', 'finalizing')",
                (int(time.time()), batch, runner),
            )
        )

    async def hold_output(self, file: str, owner: str, filename: str, size: int) -> None:
        """Adds a file that becomes visible at the end of its batch, or is removed by a later sweep."""
        now = int(time.time())
        await self._write(
            "INSERT INTO files VALUES (?, ?, 'batch_output', ?, ?, ?, ?, 'incomplete')",
            (file, owner, filename, size, now, now + UPLOAD_SECONDS),
        )

    async def end(
        self,
        batch: str,
        runner: str,
        status: Status,
        *,
        output_file: str | None = None,
        error_file: str | None = None,
        failed: int | None = None,
        errors: str | None = None,
    ) -> bool:
        """Ends the batch and shows its files. False if another runner has it."""
        return bool(
            await self._write(
                f"UPDATE batches SET status = ?, {status}_at = ?, output_file = ?, error_file = ?, "
                "failed = coalesce(?, failed), errors = ? "
                f"WHERE id = ? AND runner = ? AND status IN ({OPEN_LIST})",
                (status, int(time.time()), output_file, error_file, failed, errors, batch, runner),
            )
        )

    # Statements.

    async def _write(self, statement: str, values: Any) -> int:
        """How many rows changed, without those that triggers change."""
        async with self._connection.execute(statement, values) as cursor:
            return cursor.rowcount

    async def _one(self, kind: type[T], statement: str, values: Any) -> T | None:
        rows = list(await self._connection.execute_fetchall(statement, values))
        return msgspec.convert(dict(rows[0]), kind) if rows else None

    async def _page(
        self,
        kind: type[T],
        table: str,
        condition: str,
        values: dict[str, Any],
        owner: str,
        after: str | None,
        order: Order,
        most: int,
    ) -> list[T]:
        """The rows after the row `after`, from the newest on if `order` is desc."""
        sign = "<" if order == "desc" else ">"
        place = f"(created_at, rowid) {sign} (SELECT created_at, rowid FROM {table} "
        place += "WHERE id = :after AND owner = :owner)"
        rows = await self._connection.execute_fetchall(
            f"SELECT * FROM {table} WHERE owner = :owner AND {condition} AND (:after IS NULL OR {place}) "
            f"ORDER BY created_at {order}, rowid {order} LIMIT :most",
            {**values, "owner": owner, "after": after, "most": most},
        )
        return [msgspec.convert(dict(row), kind) for row in rows]
