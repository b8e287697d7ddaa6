"""Runs one batch: checks its file, answers its lines, and writes its output."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from ...core.work.caller import Caller
from ...core.work.thread_pool import FairThreadPool
from ...http.keys.key_ring import KeyRing
from ..database.errors import is_full
from .call import Endpoints, Reply
from .owner import known_owners
from .plan import Plan, PlannedLine, parse_line, read_plan
from .records import BatchRecord, LineError
from .results import InputLostError, LineFailure, OutputFiles, answered, read_line, write_files
from .slots import Slots
from .store import Store

EarlyEnd = Literal["cancelled", "expired", "failed"]
MOST_DEATHS = 3
"""A line gets an error once the model has died so many times while it answered the line."""
FIRST_WAIT_S, MOST_WAIT_S = 1, 30
log = logging.getLogger(__name__)

_FAILURES = {
    "cancelled": LineFailure("batch_cancelled", "The batch was cancelled before this request had finished."),
    "expired": LineFailure(
        "batch_expired", "This request could not be executed before the completion window expired."
    ),
    "failed": LineFailure("batch_failed", "The batch ended before this request was answered."),
}
_LOST = LineError("input_file_lost", "The content of the input file was removed while the batch ran.")


@dataclass(frozen=True)
class RunnerContext:
    """The objects that all batches of a process share. `database` is the path of the store's database."""

    store: Store
    database: Path
    endpoints: Endpoints
    slots: Slots
    work: FairThreadPool
    runner: str
    keys: KeyRing


class BatchRun:
    def __init__(self, context: RunnerContext, record: BatchRecord) -> None:
        self._context = context
        self._store = context.store
        self._record = record
        self._input = context.store.path(record.input_file)
        self._early: EarlyEnd | None = None
        self._stopped = asyncio.Event()
        self._sleeping = 0
        self._none_sleeps = asyncio.Event()
        """cleared while a line waits for its next attempt: the batch starts no other line"""
        self._none_sleeps.set()
        self._has_space = asyncio.Event()
        """cleared while the owner may use no more bytes: the batch starts no line"""
        self._has_space.set()
        if record.status == "cancelling":
            self.stop("cancelled")

    def stop(self, early: EarlyEnd) -> None:
        """Ends the batch with the lines that are finished. The first call decides."""
        self._early = self._early or early
        self._stopped.set()

    @property
    def owner(self) -> str:
        return self._record.owner

    def limit(self, space_left: int) -> None:
        """Starts no more lines while the owner has no bytes left."""
        if space_left > 0:
            self._has_space.set()
        else:
            self._has_space.clear()

    def is_keyless(self) -> bool:
        """True if the server no longer has the API key, and the batch has lines to run."""
        has_lines = self._early is None and self._record.status in ("validating", "in_progress")
        return has_lines and self._record.owner not in known_owners(self._context.keys)

    async def run(self) -> None:
        """Runs the batch to its end. Stops if another process has changed its status."""
        expiry = asyncio.get_running_loop().call_later(
            max(0.0, self._record.expires_at - time.time()), self.stop, "expired"
        )
        try:
            if self._record.expires_at <= time.time() and self._record.status != "finalizing":
                self.stop("expired")
            await self._run()
        finally:
            expiry.cancel()

    async def _run(self) -> None:
        record = self._record
        plan = await self._plan()
        if record.in_progress_at is None:
            if self._early or plan is None or plan.errors:
                await self._end_unstarted(plan)
                return
            if not await self._store.begin(record.id, self._context.runner, len(plan.lines)):
                return
        if plan is None:
            self.stop("failed")
        if plan is not None and record.status != "finalizing" and not self._early:
            await self._run_until_stopped(plan)
        if self._early is None and not await self._store.finalize(record.id, self._context.runner):
            return
        await self._end(plan)

    async def _plan(self) -> Plan | None:
        """None if the input file is lost."""
        try:
            return await self._context.work.run(
                Caller("batches"), read_plan(self._input, self._record.endpoint)
            )
        except FileNotFoundError:
            return None

    # Lines.

    async def _run_until_stopped(self, plan: Plan) -> None:
        finished = await self._store.finished(self._record.id)
        unfinished = [line for line in plan.lines if line.number not in finished]
        running = asyncio.create_task(self._run_lines(unfinished))
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            stopped.cancel()
            running.cancel()
            await asyncio.wait((running,))

    async def _run_lines(self, lines: Sequence[PlannedLine]) -> None:
        slots = self._context.slots
        async with asyncio.TaskGroup() as tasks:
            for line in lines:
                await self._none_sleeps.wait()
                await self._has_space.wait()
                await slots.take()
                tasks.create_task(self._run_line(line)).add_done_callback(lambda _: slots.free())

    async def _run_line(self, planned: PlannedLine) -> None:
        try:
            raw = await asyncio.to_thread(read_line, self._input, planned)
        except InputLostError:
            self.stop("failed")
            return
        line = parse_line(raw)
        reply = await self._reply(bytes(line.body))
        result = answered(planned.number, line.custom_id or "", reply)
        await self._save(planned.number, reply.status >= 400, result)

    async def _reply(self, body: bytes) -> Reply:
        """The answer, after as many attempts as it takes while the server is overloaded or starting."""
        deaths, wait = 0, FIRST_WAIT_S
        while True:
            while self.is_keyless():  # the runner soon cancels this run
                await self._sleep(FIRST_WAIT_S)
            key = known_owners(self._context.keys).get(self._record.owner)
            reply = await self._context.endpoints.call(self._record.endpoint, body, key)
            deaths += b'"model_died"' in reply.body
            if reply.status not in (429, 503) or deaths >= MOST_DEATHS:
                return reply
            await self._sleep(min(reply.retry_after or wait, MOST_WAIT_S))
            wait = min(2 * wait, MOST_WAIT_S)

    async def _sleep(self, seconds: float) -> None:
        self._sleeping += 1
        self._none_sleeps.clear()
        try:
            await self._context.slots.sleep(seconds)
        finally:
            self._sleeping -= 1
            if not self._sleeping:
                self._none_sleeps.set()

    async def _save(self, number: int, failed: bool, result: bytes) -> None:
        """Stores a line's result. Waits while the disk is full."""
        while True:
            try:
                await self._store.add_result(self._record.id, number, failed, result)
                self.limit(await self._store.left(self.owner))
                return
            except sqlite3.Error as error:
                if not is_full(error):
                    raise
                log.error("%s waits: %s", self._record.id, error)
                await asyncio.sleep(MOST_WAIT_S)

    # The end.

    async def _end_unstarted(self, plan: Plan | None) -> None:
        errors = [_LOST] if plan is None else plan.errors
        status = self._early or "failed"
        shown = msgspec.json.encode(errors).decode() if status == "failed" else None
        await self._store.end(self._record.id, self._context.runner, status, errors=shown)

    async def _end(self, plan: Plan | None) -> None:
        record, store = self._record, self._store
        status = self._early or "completed"
        finished = await store.finished(record.id)
        lines = [] if plan is None else plan.lines
        unfinished = [line for line in lines if line.number not in finished]
        names = [f"file-{secrets.token_hex(12)}" for _ in range(2)]
        made = await self._write_files(names, unfinished, has_input=plan is not None)
        shown: list[str | None] = []
        for name, size, kind in zip(names, made[:2], ("output", "error"), strict=True):
            if size:
                await store.hold_output(name, record.owner, f"{record.id}_{kind}.jsonl", size)
            shown.append(name if size else None)
        await store.end(
            record.id,
            self._context.runner,
            status,
            output_file=shown[0],
            error_file=shown[1],
            failed=made.failed,
            errors=msgspec.json.encode([_LOST]).decode() if status == "failed" else None,
        )

    async def _write_files(
        self, names: Sequence[str], unfinished: Sequence[PlannedLine], *, has_input: bool
    ) -> OutputFiles:
        context = self._context
        steps = write_files(
            context.database,
            self._record.id,
            self._input if has_input else None,
            unfinished,
            _FAILURES[self._early or "failed"],
            self._store.path(names[0]),
            self._store.path(names[1]),
        )
        return await context.work.run(Caller("batches"), steps)
