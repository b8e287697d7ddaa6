"""Runs one batch: checks its file, answers its lines, and writes its output."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ....runtime.api_keys import ApiKey
from ....runtime.config import ServeConfig
from ....runtime.errors import RequestError
from ...core.replica.engine_client import EngineClient
from ...core.work.caller import Caller
from ...core.work.thread_pool import FairThreadPool
from ...http.tenants import KeyRing
from .batch_store import BatchStore
from .endpoints import Endpoints, LineReply
from .file_store import OutputFile
from .input_file import InputLostError, Plan, PlannedLine, parse_line, read_line, read_plan
from .objects import LineError, StoredBatch
from .output_files import LineFailure, encode_answer, write_files

EarlyEnd = Literal["cancelled", "expired", "failed"]
MAX_DEATHS = 3
"""A line gets an error after the model process has died this often while it answered the line."""
FIRST_WAIT_S, MAX_WAIT_S = 1, 30
RUNNING_PART = 4
"""All lines together may have 1 / RUNNING_PART of the slots of --max-running."""
BUSY_PART = 8
"""While other requests are open, lines may have 1 / BUSY_PART of the slots of --max-running."""
LOOK_AGAIN_S = 0.1
log = logging.getLogger(__name__)

_FAILURES = {
    "cancelled": LineFailure("batch_cancelled", "The batch was cancelled before this request had finished."),
    "expired": LineFailure(
        "batch_expired", "This request could not be executed before the completion window expired."
    ),
    "failed": LineFailure("batch_failed", "The batch ended before this request was answered."),
}
_LOST = LineError("input_file_lost", "The content of the input file was removed while the batch ran.")


class LineSlots:
    """Slots for the lines that run. Batches of this process get slots in the order in which they ask."""

    def __init__(self, config: ServeConfig, engine: EngineClient) -> None:
        shared = RUNNING_PART * config.api_workers
        self._max = max(1, min(config.max_running // shared, config.max_waiting // 2))
        self._max_if_busy = max(1, self._max // BUSY_PART)
        self._engine = engine
        self._taken = 0
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def take(self) -> None:
        async with self._turn:
            while self._taken >= self._limit():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_S):  # `asyncio.wait_for` may lose a cancellation
                        await self._changed.wait()
            self._taken += 1

    def free(self) -> None:
        self._taken -= 1
        self._changed.set()

    async def sleep(self, seconds: float) -> None:
        """Sleeps without the caller's slot. The caller has a slot again afterwards, even if cancelled."""
        self.free()
        try:
            await asyncio.sleep(seconds)
            await self.take()
        except asyncio.CancelledError:
            self._taken += 1
            raise

    def _limit(self) -> int:
        is_busy = self._engine.open_requests > self._taken
        return self._max_if_busy if is_busy else self._max


@dataclass(frozen=True)
class RunnerContext:
    """The objects that all batches of a process share. `runner` is the token of the process."""

    store: BatchStore
    endpoints: Endpoints
    slots: LineSlots
    work: FairThreadPool
    runner: str
    keys: KeyRing


def map_owners(ring: KeyRing) -> Mapping[str, ApiKey | None]:
    """The keys whose batches this server may run now, by their hashes."""
    return {key.sha256: key for key in ring.keys} or {"": None}


class BatchRun:
    def __init__(self, context: RunnerContext, batch: StoredBatch) -> None:
        self.batch = batch
        self._context = context
        self._store = context.store
        self._input = context.store.files.path(batch.input_file_id)
        self._early: EarlyEnd | None = None
        self._stopped = asyncio.Event()
        self._sleeping = 0
        """The number of lines that wait for their next attempt."""
        self._has_space = True
        self._may_start = asyncio.Event()
        """Cleared while a line sleeps or the owner has no bytes left, so that no further line starts."""
        self._may_start.set()
        if batch.status == "cancelling":
            self.stop("cancelled")

    def stop(self, early: EarlyEnd) -> None:
        """Ends the batch with the lines that are finished. The first call decides."""
        self._early = self._early or early
        self._stopped.set()

    def limit(self, space_left: int) -> None:
        """Stops or resumes the start of lines, by the bytes that the owner has left."""
        self._has_space = space_left > 0
        self._decide_start()

    def is_keyless(self) -> bool:
        """Whether the server no longer has the batch's API key, while the batch still has lines to run."""
        has_lines = self._early is None and self.batch.status in ("validating", "in_progress")
        return has_lines and self.batch.owner not in map_owners(self._context.keys)

    async def run(self) -> None:
        """Runs the batch to its end. Stops if another process has changed its status."""
        is_late = self.batch.expires_at <= time.time() and self.batch.status != "finalizing"
        if is_late:
            self.stop("expired")
        left = max(0.0, self.batch.expires_at - time.time())
        expiry = asyncio.get_running_loop().call_later(left, self.stop, "expired")
        try:
            await self._run()
        finally:
            expiry.cancel()

    async def _run(self) -> None:
        batch = self.batch
        plan = await self._read_plan()
        if batch.in_progress_at is None:
            if self._early or plan is None or plan.errors:
                await self._end_unstarted(plan)
                return
            if not await self._store.begin(batch.id, self._context.runner, len(plan.lines)):
                return
        if plan is None:
            self.stop("failed")
        if plan is not None and batch.status != "finalizing" and not self._early:
            await self._run_until_stopped(plan)
        if self._early is None and not await self._store.finalize(batch.id, self._context.runner):
            return
        await self._end(plan)

    async def _read_plan(self) -> Plan | None:
        """Reads and checks the input file. None if that file is lost."""
        try:
            return await self._context.work.run(
                Caller("batches"), read_plan(self._input, self.batch.endpoint)
            )
        except FileNotFoundError:
            return None

    # Lines.

    async def _run_until_stopped(self, plan: Plan) -> None:
        running = asyncio.create_task(self._run_lines(await self._list_unfinished(plan)))
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            stopped.cancel()
            running.cancel()
            await asyncio.wait((running,))

    async def _list_unfinished(self, plan: Plan) -> list[PlannedLine]:
        finished = await self._store.list_finished(self.batch.id)
        return [line for line in plan.lines if line.number not in finished]

    async def _run_lines(self, lines: Sequence[PlannedLine]) -> None:
        slots = self._context.slots
        async with asyncio.TaskGroup() as tasks:
            for line in lines:
                await self._may_start.wait()
                await slots.take()
                tasks.create_task(self._run_line(line)).add_done_callback(lambda _: slots.free())

    async def _run_line(self, planned: PlannedLine) -> None:
        try:
            raw = await asyncio.to_thread(read_line, self._input, planned)
        except InputLostError:
            self.stop("failed")
            return
        line = parse_line(raw)
        reply = await self._answer(bytes(line.body))
        result = encode_answer(planned.number, line.custom_id or "", reply)
        await self._save(planned.number, reply.status >= 400, result)

    async def _answer(self, body: bytes) -> LineReply:
        """The answer to a line. Tries again while the server is overloaded or starting."""
        deaths, wait = 0, FIRST_WAIT_S
        while True:
            while self.is_keyless():  # until the runner cancels this run
                await self._sleep(FIRST_WAIT_S)
            key = map_owners(self._context.keys).get(self.batch.owner)
            reply = await self._context.endpoints.call(self.batch.endpoint, body, key)
            deaths += b'"model_died"' in reply.body
            if reply.status not in (429, 503) or deaths >= MAX_DEATHS:
                return reply
            await self._sleep(min(reply.retry_after or wait, MAX_WAIT_S))
            wait = min(2 * wait, MAX_WAIT_S)

    async def _sleep(self, seconds: float) -> None:
        self._sleeping += 1
        self._decide_start()
        try:
            await self._context.slots.sleep(seconds)
        finally:
            self._sleeping -= 1
            self._decide_start()

    def _decide_start(self) -> None:
        if self._has_space and not self._sleeping:
            self._may_start.set()
        else:
            self._may_start.clear()

    async def _save(self, number: int, failed: bool, result: bytes) -> None:
        """Stores a line's result. Waits while the disk is full."""
        while True:
            try:
                self.limit(await self._store.add_result(self.batch.id, number, failed, result))
                return
            except RequestError as error:
                if error.code != "disk_full":
                    raise
                await asyncio.sleep(MAX_WAIT_S)

    # The end.

    async def _end_unstarted(self, plan: Plan | None) -> None:
        errors = [_LOST] if plan is None else plan.errors
        status = self._early or "failed"
        mistakes = errors if status == "failed" else []
        await self._store.end(self.batch.id, self._context.runner, status, mistakes=mistakes)

    async def _end(self, plan: Plan | None) -> None:
        batch, files = self.batch, self._store.files
        status = self._early or "completed"
        ids = [f"file-{secrets.token_hex(12)}" for _ in range(2)]
        steps = write_files(
            self._store.records.path,
            batch.id,
            None if plan is None else self._input,
            [] if plan is None else await self._list_unfinished(plan),
            _FAILURES[self._early or "failed"],
            files.path(ids[0]),
            files.path(ids[1]),
        )
        sizes = await self._context.work.run(Caller("batches"), steps)
        names = ("output_file_id", "error_file_id")
        outputs = {
            name: OutputFile(id, f"{batch.id}_{name.removesuffix('_file_id')}.jsonl", size)
            for name, id, size in zip(names, ids, sizes, strict=False)
            if size
        }
        mistakes = [_LOST] if status == "failed" else []
        runner = self._context.runner
        is_ended = await self._store.end(batch.id, runner, status, outputs, mistakes, sizes.failed)
        if not is_ended:
            for id in ids:
                await asyncio.to_thread(files.path(id).unlink, missing_ok=True)
