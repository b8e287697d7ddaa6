"""Responses that are computed without a connected client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from ....runtime.api_keys import ApiKey
from ....runtime.errors import RequestError
from ...core.replica.generation import Generation
from ...core.work.caller import ClientGoneError
from ...http.cache_miss_tracker import CacheMissTracker
from ...http.endpoint import HttpJob, answer_parts, internal_error
from ...http.http_service import HttpService
from ...http.metrics import RequestTimer
from ...http.time_limit import TimeLimit
from .answers import Attempts, failed
from .protocol import Item
from .response_store import ResponseStore
from .responses import OPEN_STATUSES, Response

CHECK_S = 1.0
"""Seconds between two checks whether another process has cancelled or deleted the response."""
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 60.0
"""First and maximum seconds before another attempt to store a response's end. Each failure doubles them."""
RETRIES_S = (1.0, 2.0, 4.0)
"""Seconds before each further attempt to store a finished reply, which stays in progress until then."""
log = logging.getLogger(__name__)

_NOT_STORED = RequestError(
    "The server could not store this response: send the request again.", status=503, code="storage_failed"
)


@dataclass
class Run:
    """One response in this process.

    `events` has the events so far, event i at index i. `unstored` is the response's end while it can't be
    stored. `key` and `limit` are the API key and the time limit of the request.
    """

    owner: str
    response: Response
    items: Sequence[Item]
    job: HttpJob
    attempts: Attempts
    generation: Generation
    watch: CacheMissTracker
    key: ApiKey | None
    limit: TimeLimit
    unstored: Response | None = None
    events: list[bytes] = field(default_factory=list)
    is_ending: bool = False
    """Whether the response's end is being stored."""
    is_done: bool = False
    """Whether `events` has the last event."""
    task: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def append(self, events: bytes) -> None:
        """Adds events, unless the last one has been added."""
        if not self.is_done:
            self.events += [event + b"\n\n" for event in events.split(b"\n\n")[:-1]]
            self._wake()

    def end(self, events: bytes) -> None:
        """Adds the last events."""
        self.append(events)
        self.is_done = True
        self._wake()

    async def ended(self) -> None:
        while not self.is_done:
            await self._changed.wait()

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

    def __init__(self, http: HttpService, store: ResponseStore) -> None:
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
        job: HttpJob,
        attempts: Attempts,
        watch: CacheMissTracker,
        key: ApiKey | None,
        limit: TimeLimit,
    ) -> Run:
        """Starts a response. Returns once the scheduler accepts it. Raises `RequestError` for a refusal."""
        engine = job.job.service.engine
        generation = engine.start(job.job.requests)
        try:
            await generation.accepted()
            await self._store.begin(owner, response, items)
        except BaseException:
            engine.forget(generation)
            raise
        run = Run(owner, response, items, job, attempts, generation, watch, key, limit)
        self._runs[response.id] = run
        run.task = asyncio.create_task(self._run(run))
        return run

    async def cancel(self, owner: str, id: str) -> None:
        """Ends a response, unless it has ended."""
        run = self.run_of(owner, id)
        if run is None:
            await self._store.cancel(owner, id)
        elif run.is_ending:
            await run.ended()
        else:
            run.is_ending = True
            run.unstored, last = run.attempts.cancelled()
            run.end(last)
            run.generation.close()
            await self._store_end(run)

    async def close(self) -> None:
        """Ends the work on responses that still run. A later request for one of them finds that it failed."""
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store.close()

    async def _run(self, run: Run) -> None:
        try:
            await self._compute(run)
            wait = FIRST_RETRY_S
            while run.unstored is not None:
                await asyncio.sleep(wait)
                await self._store_end(run)
                wait = min(2 * wait, MAX_RETRY_S)
        finally:
            self._runs.pop(run.response.id, None)

    async def _compute(self, run: Run) -> None:
        """Computes the response and stores its end. The generation is forgotten last, because a draining
        server stops once none is open."""
        service = run.job.job.service
        timer = RequestTimer(self._http.metrics, run.key)
        ending = run.limit.end_later(run.generation)
        watch = asyncio.create_task(self._close_when_ended(run))
        last = b""
        try:
            async for events in answer_parts(run.job, run.generation, timer, service.work, run.watch):
                run.generation.token_left = True
                if run.attempts.final is None:
                    run.append(events)
                else:
                    last = events
            await self._end(run, last)
            await run.watch.count()
        except ClientGoneError:
            timer.aborted(len(run.job.job.requests))
            await self._end_cancelled(run)
        except RequestError as error:
            await self._fail(run, error, timer)
        except Exception:
            log.exception("a background response failed")
            await self._fail(run, internal_error(), timer)
        finally:
            watch.cancel()
            if ending is not None:
                ending.cancel()
            run.end(b"")
            service.engine.forget(run.generation)

    async def _fail(self, run: Run, error: RequestError, timer: RequestTimer) -> None:
        timer.failed(error)
        await self._end(run, run.job.error_event(error))

    async def _end(self, run: Run, last: bytes) -> None:
        """Stores the end of a response, and then shows its `last` events.

        If it can't be stored after several attempts, the response has failed.
        """
        final = run.attempts.final
        assert final is not None, "the reply has ended"
        if run.is_ending:
            return
        run.is_ending = True
        try:
            is_stored = await self._finish(run, final, b"".join((*run.events, last)))
        except Exception as error:
            _log_unstored(final, error)
            if final.status != "failed":
                final = failed(run.response, _NOT_STORED)
                last = run.attempts.closing_instead(final)
            run.unstored = final
            run.end(last)
            return
        if is_stored:
            run.end(last)
        else:
            await self._end_cancelled(run)

    async def _finish(self, run: Run, final: Response, events: bytes) -> bool:
        """`ResponseStore.finish`, with further attempts if it fails and a reply would be lost."""
        for wait in RETRIES_S if final.status != "failed" else ():
            try:
                return await self._store.finish(run.owner, final, run.items, events)
            except Exception as error:
                _log_unstored(final, error)
            await asyncio.sleep(wait)
        return await self._store.finish(run.owner, final, run.items, events)

    async def _end_cancelled(self, run: Run) -> None:
        """Ends the stream of a response that another process has cancelled, or that was deleted."""
        if run.is_done:
            return
        _, last = run.attempts.cancelled()
        run.end(last)
        try:
            await self._store.add_events(run.owner, run.response.id, b"".join(run.events))
        except RequestError as error:
            if error.status != 404:  # the response was deleted
                log.error("the events of the response %s are not stored: %s", run.response.id, error)

    async def _store_end(self, run: Run) -> None:
        """Stores an end that readers have already seen. On a failure it stays unstored."""
        final = run.unstored
        if final is None:
            return
        try:
            await self._store.finish(run.owner, final, run.items, b"".join(run.events))
            run.unstored = None
        except Exception as error:
            _log_unstored(final, error)

    async def _close_when_ended(self, run: Run) -> None:
        """Polls the store, and ends the run if another process has cancelled or deleted its response."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                status = await self._store.read_status(run.owner, run.response.id)
            except RequestError as error:
                if error.status != 404:  # the database failed
                    continue
                status = "deleted"
            if status not in OPEN_STATUSES:
                run.generation.close()
                return


def _log_unstored(final: Response, error: Exception) -> None:
    is_expected = isinstance(error, RequestError)
    log.error("the end of the response %s is not stored: %s", final.id, error, exc_info=not is_expected)
