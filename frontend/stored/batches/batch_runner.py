"""Runs the batches of a data directory. Each process claims the batches that it runs."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from ....runtime.errors import RequestError
from ...http.http_service import HttpService
from ..records.alive import AliveFile
from .batch_run import BatchRun, LineSlots, RunnerContext, map_owners
from .batch_store import BatchStore
from .endpoints import Endpoints

MAX_BATCHES = 8
"""Maximum batches that a process runs at a time."""
MAX_OF_OWNER = 2
"""Maximum batches of one owner that all processes together run at a time."""
ORPHAN_SECONDS = 3600
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """Times in seconds between two looks at the database, two attempts after a failure, and two sweeps."""

    poll: float = 1.0
    retry: float = 30.0
    sweep: float = 600.0


class BatchRunner:
    def __init__(self, http: HttpService, store: BatchStore, endpoints: Endpoints, pace: Pace) -> None:
        self._http = http
        self._config = http.service.config
        self._engine = http.service.engine
        self._store = store
        self._endpoints = endpoints
        self._slots = LineSlots(self._config, self._engine)
        self._pace = pace
        self._runs: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._swept = 0.0

    async def run(self) -> None:
        """Runs batches while the database exists, until the caller cancels it or the server shuts down."""
        alive: AliveFile | None = None
        try:
            while not self._engine.drain_requested.is_set():
                pause = self._pace.poll
                try:
                    if self._store.records.path.exists():
                        if alive is None:
                            alive = AliveFile(self._store.directory)
                        await self._do_turn(alive.token)
                except RequestError:  # the log has the reason
                    pause = self._pace.retry
                except Exception:
                    log.exception("batches do not run at the moment")
                    pause = self._pace.retry
                await self._wait(pause)
        finally:
            await self._stop(alive)

    async def _do_turn(self, runner: str) -> None:
        await self._sweep()
        await self._look_after_runs(runner)
        await self._start_runs(runner)

    async def _wait(self, seconds: float) -> None:
        """Waits until a batch ends, the server drains, or the time is over."""
        draining = asyncio.create_task(self._engine.drain_requested.wait())
        tasks = [task for _, task in self._runs.values() if not task.done()]
        try:
            await asyncio.wait((draining, *tasks), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            draining.cancel()

    async def _look_after_runs(self, runner: str) -> None:
        """Reacts to changes of the batches that run, and releases those whose run has ended."""
        if not self._runs:
            return
        states = await self._store.read_states(runner)
        for id, (run, task) in list(self._runs.items()):
            if task.done():
                await self._store.release(id, runner)
                del self._runs[id]
            elif id not in states or run.is_keyless():
                task.cancel()
            elif states[id] == "cancelling":
                run.stop("cancelled")
        for run, _ in self._runs.values():
            run.limit(await self._store.files.left(run.batch.owner))

    async def _start_runs(self, runner: str) -> None:
        service, keys = self._http.service, self._http.keys
        context = RunnerContext(self._store, self._endpoints, self._slots, service.work, runner, keys)
        while len(self._runs) < MAX_BATCHES:
            batch = await self._store.claim(
                runner, self._config.model_names, map_owners(keys).keys(), MAX_OF_OWNER
            )
            if batch is None:
                return
            run = BatchRun(context, batch)
            run.limit(await self._store.files.left(batch.owner))
            self._runs[batch.id] = run, asyncio.create_task(self._run(run))

    async def _run(self, run: BatchRun) -> None:
        """Runs a batch. After a failure no process tries it again for some time."""
        try:
            await run.run()
        except Exception:
            log.exception("%s is tried again in %g s", run.batch.id, self._pace.retry)
            await asyncio.sleep(self._pace.retry)

    async def _stop(self, alive: AliveFile | None) -> None:
        tasks = [task for _, task in self._runs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if alive is not None:
            alive.close()  # lets other processes claim the batches

    async def _sweep(self) -> None:
        if time.monotonic() < self._swept + self._pace.sweep:
            return
        self._swept = time.monotonic()
        await self._store.records.sweep()
        await self._store.files.remove_orphans(ORPHAN_SECONDS)
