"""Responses that are computed without a connected client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from ...runtime.errors import RequestError
from ..http.cache_watch import CacheWatch
from ..http.endpoint import Job, answer_parts, internal_error
from ..http.http_service import HttpService
from ..http.metrics import RequestTimer
from ..http.time_limit import TimeLimit
from ..replica.generation import Generation
from ..work.caller import ClientGoneError
from .answers import Attempts
from .protocol import Item
from .responses import Response
from .store import Store

CHECK_S = 1.0  # between looks at whether another process has cancelled or deleted the response
log = logging.getLogger(__name__)


@dataclass
class Run:
    """One response in this process. `events` has the events so far; number i is at index i."""

    owner: str
    response: Response
    items: Sequence[Item]
    job: Job
    attempts: Attempts
    generation: Generation
    watch: CacheWatch
    events: list[bytes] = field(default_factory=list)
    is_done: bool = False
    task: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def append(self, events: bytes) -> None:
        self.events += [event + b"\n\n" for event in events.split(b"\n\n")[:-1]]
        self._wake()

    def end(self) -> None:
        self.is_done = True
        self._wake()

    async def follow(self, after: int) -> AsyncIterator[bytes]:
        """The events after number `after`, as they come."""
        position = after + 1
        while True:
            changed = self._changed
            if position < len(self.events):
                yield b"".join(self.events[position:])
                position = len(self.events)
            elif self.is_done:
                return
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Background:
    """The responses that this process computes in the background."""

    def __init__(self, http: HttpService, store: Store) -> None:
        self._http = http
        self._store = store
        self._runs: dict[str, Run] = {}

    def run_of(self, owner: str, id: str) -> Run | None:
        run = self._runs.get(id)
        return run if run is not None and run.owner == owner else None

    async def start(
        self,
        owner: str,
        response: Response,
        items: Sequence[Item],
        job: Job,
        attempts: Attempts,
        watch: CacheWatch,
    ) -> Run:
        """Returns once the scheduler has accepted the request. Raises `RequestError` if it refuses it."""
        engine = self._http.service.engine
        generation = engine.start(job.prepared.requests)
        try:
            await generation.accepted()
            await self._store.begin(owner, response, items)
        except BaseException:
            engine.forget(generation)
            raise
        run = Run(owner, response, items, job, attempts, generation, watch)
        self._runs[response.id] = run
        run.task = asyncio.create_task(self._run(run))
        return run

    async def cancel(self, owner: str, id: str) -> None:
        """Ends a response, unless it has ended."""
        run = self.run_of(owner, id)
        await self._store.cancel(owner, id, None if run is None else run.attempts.cancelled())
        if run is not None:
            run.generation.close()

    async def close(self) -> None:
        """Ends the work on responses that still run. A later request for one of them finds that it failed."""
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.close()

    async def _run(self, run: Run) -> None:
        service = self._http.service
        timer = RequestTimer(self._http.metrics)
        ending = TimeLimit(service.config.request_timeout).end_later(run.generation)
        watch = asyncio.create_task(self._close_when_ended(run))
        try:
            async for events in answer_parts(run.job, run.generation, timer, service.work, run.watch):
                run.generation.token_left = True
                run.append(events)
        except ClientGoneError:  # cancelled or deleted
            timer.aborted(len(run.job.prepared.requests))
        except RequestError as error:
            await self._fail(run, error, timer)
        except Exception:
            log.exception("a background response failed")
            await self._fail(run, internal_error(), timer)
        finally:
            watch.cancel()
            if ending is not None:
                ending.cancel()
            await self._forget(run)

    async def _fail(self, run: Run, error: RequestError, timer: RequestTimer) -> None:
        timer.failed(error)
        run.append(run.job.error_event(error))
        assert run.attempts.final is not None, "a failure ends the response"
        await self._store.finish(run.attempts.final, run.items)

    async def _forget(self, run: Run) -> None:
        """The server may end as soon as the engine has forgotten the generation."""
        try:
            await self._store.keep_events(run.response.id, run.events)
        finally:
            run.end()
            self._runs.pop(run.response.id, None)
            self._http.service.engine.forget(run.generation)

    async def _close_when_ended(self, run: Run) -> None:
        """Another process may cancel or delete the response."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                status = await self._store.status(run.owner, run.response.id)
            except RequestError:  # deleted
                status = "deleted"
            if status not in ("queued", "in_progress"):
                run.generation.close()
                return
