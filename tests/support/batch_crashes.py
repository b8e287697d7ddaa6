"""A batch whose process dies at a chosen statement of its database, and runs again."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
from arbora.frontend.core.work.thread_pool import FairThreadPool
from arbora.frontend.http.keys.key_ring import KeyRing
from arbora.frontend.stored.batches.batch_run import BatchRun, RunnerContext
from arbora.frontend.stored.batches.call import Reply
from arbora.frontend.stored.batches.records import BatchRecord
from arbora.frontend.stored.batches.schema import NAME, SCHEMA, VERSION
from arbora.frontend.stored.batches.slots import Slots
from arbora.frontend.stored.batches.store import Store
from arbora.frontend.stored.database import open_database
from batch_world import CHATS, chat, jsonl

OWNER, FILE = "", "file-in"


class KilledError(BaseException):
    """The process is dead: none of its code does anything more."""


class Death(NamedTuple):
    """The process dies at its statement number `at`, before or after the database has carried it out."""

    at: int
    after: bool


class MortalConnection:
    """A connection of a process that dies."""

    def __init__(self, connection: Any, death: Death | None) -> None:
        self._connection = connection
        self._death = death
        self._count = 0

    async def execute_fetchall(self, statement: str, values: Any = ()) -> Any:
        is_last = self.count()
        rows = await self._connection.execute_fetchall(statement, values)
        if is_last:
            raise KilledError
        return rows

    def execute(self, statement: str, values: Any = ()) -> Any:
        return _MortalStatement(self, lambda: self._connection.execute(statement, values))

    def count(self) -> bool:
        """True if the process dies after this statement. Raises KilledError if it dies before, or is dead."""
        self._count += 1
        if self._death is None or self._count < self._death.at:
            return False
        if self._count > self._death.at or not self._death.after:
            raise KilledError
        return True


class _MortalStatement:
    def __init__(self, connection: MortalConnection, begin: Callable[[], Any]) -> None:
        self._connection = connection
        self._begin = begin
        self._inner: Any = None

    async def __aenter__(self) -> Any:
        is_last = self._connection.count()
        self._inner = self._begin()
        cursor = await self._inner.__aenter__()
        if is_last:
            await self._inner.__aexit__(None, None, None)
            raise KilledError
        return cursor

    async def __aexit__(self, *error: Any) -> None:
        await self._inner.__aexit__(*error)


class Answers:
    """Answers each body with the status that it names. `asked` counts the calls by text."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def call(self, path: str, body: bytes, key: str | None) -> Reply:
        fields = json.loads(body)
        self.asked[fields["messages"][0]["content"]] += 1
        return Reply(fields["status"], "request", b'{"answer": true}', 0)


class CrashWorld:
    """One batch in a directory. Each call of `run` is a new process."""

    def __init__(self, directory: Path, statuses: Sequence[int], slots: int = 4) -> None:
        self._slots = slots
        self.directory = directory
        self.answers = Answers()
        self.lines = [
            chat(f"id {number}", f"{number % 3}", status=status) for number, status in enumerate(statuses)
        ]
        self._processes = 0

    async def store(self, death: Death | None = None) -> tuple[Any, Store]:
        connection = await open_database(self.directory, NAME, SCHEMA, VERSION)
        connection.row_factory = sqlite3.Row
        files = self.directory / "files"
        files.mkdir(exist_ok=True)
        return connection, Store(cast(Any, MortalConnection(connection, death)), files, 1 << 30)

    async def begin(self) -> BatchRecord:
        connection, store = await self.store()
        store.path(FILE).write_bytes(jsonl(*self.lines))
        await store.begin_file(FILE, OWNER, "batch", 1)
        await store.finish_file(FILE, "in.jsonl", 1, 3600)
        record = await store.create_batch(
            owner=OWNER,
            model="tiny",
            endpoint=CHATS,
            window="1h",
            seconds=3600,
            input_file=FILE,
            output_seconds=3600,
            metadata=None,
            most_open=1,
        )
        await connection.close()
        assert record is not None
        return record

    async def run(self, death: Death | None = None) -> None:
        """Leases the batch, whose earlier lease counts as expired, and runs it."""
        connection, store = await self.store(death)
        self._processes += 1
        runner = f"process {self._processes}"
        config = SimpleNamespace(max_running=4 * self._slots, max_waiting=16, api_workers=1)
        slots = Slots(cast(Any, config), cast(Any, SimpleNamespace(open_requests=0)))
        context = RunnerContext(
            store,
            self.directory / f"{NAME}.sqlite",
            cast(Any, self.answers),
            slots,
            FairThreadPool(),
            runner,
            KeyRing(()),
        )
        try:
            record = await store.claim(runner, -1, ["tiny"], [OWNER], 8)
            if record is not None:
                await BatchRun(context, record).run()
        except KilledError:
            pass
        except BaseExceptionGroup as group:
            assert group.split(KilledError)[1] is None, group
        finally:
            await connection.close()

    async def cancel(self, batch: str) -> None:
        connection, store = await self.store()
        await store.cancel(batch, OWNER)
        await connection.close()

    async def expire(self, batch: str) -> None:
        connection, _ = await self.store()
        await connection.execute("UPDATE batches SET expires_at = created_at - 1 WHERE id = ?", (batch,))
        await connection.close()

    async def found(self, batch: str) -> BatchRecord:
        connection, store = await self.store()
        record = await store.batch(batch, OWNER)
        await connection.close()
        assert record is not None
        return record

    def file(self, name: str | None) -> list[Any]:
        if name is None:
            return []
        return [
            msgspec.json.decode(line) for line in (self.directory / "files" / name).read_bytes().splitlines()
        ]
