"""Runs the batches of a data directory. Several processes may: each leases the batches that it runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from ....runtime.errors import RequestError
from ...http.http_service import HttpService
from ..database import file_at
from .batch_run import BatchRun, RunnerContext
from .call import Endpoints
from .owner import known_owners
from .slots import Slots
from .storage import database_path, open_store
from .store import Store

MOST_BATCHES = 8  # of a process at a time
MOST_OF_OWNER = 2
ORPHAN_SECONDS = 3600
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """Times in seconds. A lease is longer than several polls, and ends that time after its process died."""

    poll: float = 1.0
    lease: float = 15.0
    retry: float = 30.0
    sweep: float = 600.0


class Runner:
    def __init__(self, http: HttpService, endpoints: Endpoints, pace: Pace) -> None:
        self._config = http.service.config
        self._keys = http.keys
        self._engine = http.service.engine
        self._work = http.service.work
        self._endpoints = endpoints
        self._pace = pace
        self._slots = Slots(self._config, self._engine)
        self._id = secrets.token_hex(8)
        self._runs: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._swept = 0.0

    async def run(self) -> None:
        """Runs batches until it is cancelled, or the server shuts down. Each store is served while its file
        is there."""
        if self._config.data_dir is None:
            return
        path = database_path(self._config)
        while not self._engine.drain_requested.is_set():
            pause = self._pace.poll
            if path.exists():
                try:
                    async with open_store(self._config) as store:
                        await self._serve(store, path)
                except RequestError:  # the log has the reason
                    pause = self._pace.retry
                except Exception:
                    log.exception("batches do not run at the moment")
                    pause = self._pace.retry
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # wait_for may lose a cancellation
                    await self._engine.drain_requested.wait()

    async def _serve(self, store: Store, path: Path) -> None:
        context = RunnerContext(store, path, self._endpoints, self._slots, self._work, self._id, self._keys)
        draining = asyncio.create_task(self._engine.drain_requested.wait())
        opened = file_at(path)
        try:
            while not draining.done() and opened is not None and file_at(path) == opened:
                await self._sweep(store)
                await self._look_after_runs(store)
                await self._start_runs(context)
                await store.shrink()
                tasks = [task for _, task in self._runs.values()]
                await asyncio.wait(
                    (draining, *tasks), timeout=self._pace.poll, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            draining.cancel()
            await self._end_runs(store)

    async def _look_after_runs(self, store: Store) -> None:
        """Renews the leases, and reacts to changes of the batches."""
        if not self._runs:
            return
        statuses = await store.renew(self._id, self._pace.lease)
        for batch, (run, task) in list(self._runs.items()):
            if task.done():
                del self._runs[batch]
                await self._release(store, batch, task)
            elif batch not in statuses or run.is_keyless():
                task.cancel()
            elif statuses[batch] == "cancelling":
                run.stop("cancelled")
        for run, _ in self._runs.values():
            run.limit(await store.left(run.owner))

    async def _start_runs(self, context: RunnerContext) -> None:
        while len(self._runs) < MOST_BATCHES:
            record = await context.store.claim(
                self._id,
                self._pace.lease,
                self._config.model_names,
                known_owners(self._keys).keys(),
                MOST_OF_OWNER,
            )
            if record is None:
                return
            run = BatchRun(context, record)
            run.limit(await context.store.left(record.owner))
            self._runs[record.id] = run, asyncio.create_task(run.run())

    async def _release(self, store: Store, batch: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s is tried again in %g s", batch, self._pace.retry, exc_info=error)
        await store.release(batch, self._id, 0 if error is None else self._pace.retry)

    async def _end_runs(self, store: Store) -> None:
        """Ends all runs and their leases, so that other runners may have the batches at once."""
        runs, self._runs = self._runs, {}
        for _, task in runs.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in runs.values()), return_exceptions=True)
        for batch in runs:
            await store.release(batch, self._id)

    async def _sweep(self, store: Store) -> None:
        if time.monotonic() < self._swept + self._pace.sweep:
            return
        self._swept = time.monotonic()
        await store.sweep()
        known = await store.known_files()
        await asyncio.to_thread(_remove_orphans, store.directory, known)


def _remove_orphans(directory: Path, known: set[str]) -> None:
    """Removes files without a row that are too old to belong to a row that was added meanwhile."""
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.name not in known and path.stat().st_mtime < time.time() - ORPHAN_SECONDS:
                path.unlink()
