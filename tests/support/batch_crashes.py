"""A batch whose process dies at a chosen transaction of its database, and runs again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from arbora.frontend.core.work.thread_pool import FairThreadPool
from arbora.frontend.http.tenants import KeyRing
from arbora.frontend.stored.batches.batch_run import BatchRun, LineSlots, RunnerContext
from arbora.frontend.stored.batches.batch_store import BatchStore
from arbora.frontend.stored.batches.endpoints import LineReply
from arbora.frontend.stored.batches.objects import BatchObject, RequestCounts, StoredBatch
from arbora.frontend.stored.records.alive import AliveFile
from arbora.frontend.stored.records.record_store import RecordStore
from arbora.frontend.stored.records.transaction import Transaction
from batch_world import CHATS, chat, jsonl

OWNER, FILE = "", "file-in"
T = TypeVar("T")


class KilledError(BaseException):
    """The process is dead: none of its code does anything more."""


class Death(NamedTuple):
    """The process dies at its transaction number `at`, before it begins or after it is committed."""

    at: int
    after: bool


class MortalRecords:
    """The records of a process that dies."""

    def __init__(self, records: RecordStore, death: Death | None) -> None:
        self.path = records.path
        self._records = records
        self._death = death
        self._count = 0

    async def read(self, work: Callable[[Transaction], T]) -> T:
        return await self._do(self._records.read(work))

    async def write(self, work: Callable[[Transaction], T]) -> T:
        return await self._do(self._records.write(work))

    async def sweep(self) -> None:
        await self._do(self._records.sweep())

    async def _do(self, transaction: Coroutine[Any, Any, T]) -> T:
        """Raises KilledError if the process dies before or after this transaction, or is dead."""
        self._count += 1
        if self._death is not None and (
            self._count > self._death.at or (self._count == self._death.at and not self._death.after)
        ):
            transaction.close()
            raise KilledError
        if self._death is not None and self._count == self._death.at:
            await asyncio.shield(transaction)  # the death of other lines does not undo it
            raise KilledError
        return await transaction


class Answers:
    """Answers each body with the status that it names. `asked` counts the calls by text."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def call(self, path: str, body: bytes, key: str | None) -> LineReply:
        fields = json.loads(body)
        self.asked[fields["messages"][0]["content"]] += 1
        return LineReply(fields["status"], "request", b'{"answer": true}', 0)


class CrashWorld:
    """One batch in a directory. Each call of `run` is a new process."""

    def __init__(self, directory: Path, statuses: Sequence[int], slots: int = 4) -> None:
        self._slots = slots
        self.directory = directory
        self.answers = Answers()
        self.lines = [
            chat(f"id {number}", f"{number % 3}", status=status) for number, status in enumerate(statuses)
        ]

    @contextlib.asynccontextmanager
    async def store(self, death: Death | None = None) -> AsyncIterator[BatchStore]:
        store = BatchStore(self.directory, 2 << 30, shares=False)
        records = store.records
        mortal = cast(Any, MortalRecords(records, death))
        store.records = store.files.records = mortal
        yield store
        await records.close()

    async def begin(self) -> BatchObject:
        now = int(time.time())
        batch = StoredBatch(
            id="batch_1",
            endpoint=CHATS,
            model="tiny",
            input_file_id=FILE,
            completion_window="1h",
            status="validating",
            created_at=now,
            expires_at=now + 3600,
            request_counts=RequestCounts(0, 0, 0),
            metadata=None,
            owner=OWNER,
            output_seconds=3600,
        )
        async with self.store() as store:
            await store.files.begin(FILE, OWNER, 1, 1)
            store.files.path(FILE).write_bytes(jsonl(*self.lines))
            await store.files.finish(FILE, OWNER, "in.jsonl", 1, 3600)
            await store.create(batch, 1)
        return batch

    async def run(self, death: Death | None = None) -> None:
        """Claims the batch and runs it, in a process that ends then."""
        config = SimpleNamespace(max_running=4 * self._slots, max_waiting=16, api_workers=1)
        slots = LineSlots(cast(Any, config), cast(Any, SimpleNamespace(open_requests=0)))
        alive = AliveFile(self.directory)
        async with self.store(death) as store:
            context = RunnerContext(
                store, cast(Any, self.answers), slots, FairThreadPool(), alive.token, KeyRing(())
            )
            try:
                batch = await store.claim(alive.token, ["tiny"], [OWNER], 8)
                if batch is not None:
                    await BatchRun(context, batch).run()
            except KilledError:
                pass
            except BaseExceptionGroup as group:
                assert group.split(KilledError)[1] is None, group
            finally:
                alive.close()

    async def cancel(self, batch: str) -> None:
        async with self.store() as store:
            await store.cancel(batch, OWNER)

    async def expire(self, batch: str) -> None:
        with contextlib.closing(
            sqlite3.connect(self.directory / "batches.sqlite", isolation_level=None)
        ) as connection:
            connection.execute(
                "UPDATE records SET body = CAST(json_set(CAST(body AS TEXT), '$.expires_at', 1) AS BLOB) "
                "WHERE id = ?",
                (batch,),
            )

    async def found(self, batch: str) -> BatchObject:
        async with self.store() as store:
            return await store.find(batch, OWNER)

    def file(self, name: str | None) -> list[Any]:
        if name is None:
            return []
        return [
            msgspec.json.decode(line) for line in (self.directory / "files" / name).read_bytes().splitlines()
        ]
