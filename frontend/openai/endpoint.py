"""From a prepared request to its HTTP answer, streamed or whole, until the client has it or goes away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ...runtime.errors import RequestError
from ..http.http_service import HttpService
from ..http.metrics import RequestTimer
from ..http.request_log import TIMER
from ..replica.generation import Generation
from ..request.attempts import Attempt, run_apart, run_attempts
from ..request.prepare import PreparedRequest
from ..request.reply import MANY_TOKENS, Reply
from ..work.caller import ClientGoneError
from ..work.fair_threads import FairThreads
from .errors import error_event, internal_error

log = logging.getLogger(__name__)

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


Answer: TypeAlias = Attempt[bytes, bytes]
"""`take` gives the events to send now, nothing if the answer is sent whole; `closing` the last events, or
the whole body."""


@dataclass(frozen=True)
class Job:
    """A request that is ready to be sent to the scheduler. `answer` makes the answer for a reply."""

    request_id: str
    prepared: PreparedRequest
    streams: bool
    answer: Callable[[Reply], Answer]


class GenerationEndpoint:
    """An ASGI application for one path. `prepare` raises `RequestError` for what can't be served."""

    def __init__(self, http: HttpService, prepare: Callable[[HttpService, Request], Awaitable[Job]]) -> None:
        self._http = http
        self._prepare = prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[TIMER] = timer = RequestTimer(self._http.metrics)
        service = self._http.service
        job = await self._prepare(self._http, Request(scope, receive))
        generation = service.engine.start(job.prepared.requests)
        watch = asyncio.create_task(_close_when_gone(receive, generation))
        try:
            await generation.accepted()
            send_answer = _send_stream if job.streams else _send_whole
            parts = _answer_parts(job, generation, timer, service.work)
            await send_answer(job, parts, generation, timer, send)
        except ClientGoneError:
            timer.aborted(len(job.prepared.requests))
            if not job.streams:  # of a stream the response has begun
                raise
        finally:
            watch.cancel()
            service.engine.forget(generation)


async def _close_when_gone(receive: Receive, generation: Generation) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.close()


async def _send_whole(
    job: Job, parts: AsyncIterator[bytes], generation: Generation, timer: RequestTimer, send: Send
) -> None:
    *_, body = [data async for data in parts]
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        _id_header(job),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_stream(
    job: Job, parts: AsyncIterator[bytes], generation: Generation, timer: RequestTimer, send: Send
) -> None:
    """The headers go out at once. The first event waits for the first output, so that a client that takes
    it for the first token measures the right time."""
    headers = [*_STREAM_HEADERS, _id_header(job)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        async for events in parts:
            generation.token_left = True
            await send({"type": "http.response.body", "body": events, "more_body": True})
    except RequestError as error:
        await _send_failure(error, timer, send)
    except ClientGoneError:
        raise
    except Exception:
        log.exception("a stream failed")
        await _send_failure(internal_error(), timer, send)
    await send({"type": "http.response.body", "body": b""})


async def _send_failure(error: RequestError, timer: RequestTimer, send: Send) -> None:
    timer.failed(error.status)
    await send({"type": "http.response.body", "body": error_event(error), "more_body": True})


def _id_header(job: Job) -> tuple[bytes, bytes]:
    """OpenAI's clients show it as the completion's `_request_id`."""
    return b"x-request-id", job.request_id.encode()


async def _answer_parts(
    job: Job, generation: Generation, timer: RequestTimer, work: FairThreads
) -> AsyncIterator[bytes]:
    """Everything to send, nothing empty; the last part is the closing.

    Log-probabilities of many tokens, which may take a second to write, are written on another thread.
    """
    sampling = job.prepared.requests[0].sampling
    has_logprobs = sampling.logprobs is not None or sampling.prompt_logprobs is not None

    def begin() -> Answer:
        return job.answer(job.prepared.new_reply(generation))

    async for attempt, events in run_attempts(generation, begin, work, timer.output):
        answer = attempt
        if events:
            yield events
    usage = answer.reply.usage()
    timer.finished(usage, [choice.finish or "" for choice in answer.reply.choices])
    is_long = usage.prompt_tokens + usage.completion_tokens > MANY_TOKENS
    yield await run_apart(work, answer.closing, has_logprobs and is_long)
