"""From a prepared request to its HTTP answer, streamed or whole, until the client has it or goes away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ...runtime.errors import RequestError
from ...runtime.messages import Generate
from ..caller import Caller
from ..fair_threads import FairThreads
from ..generation import Arrival, ClientGoneError, Generation
from ..metrics import RequestTimer
from ..request_log import TIMER
from ..service import Service
from ..steps import Steps
from .errors import error_event, internal_error
from .reply import Reply

MANY_TOKENS = 1000
_MANY_BYTES = 4 * MANY_TOKENS  # of packed log-probabilities
log = logging.getLogger(__name__)

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Answer(Protocol):
    """One attempt at a request: it takes arrivals and gives the bytes to send."""

    reply: Reply

    def push(self, arrivals: Sequence[Arrival]) -> bytes:
        """The events to send now; nothing if the answer is sent whole."""

    def closing(self) -> bytes:
        """The last events, or the whole body."""


class Job(Protocol):
    """A request that has been checked and tokenized."""

    @property
    def request_id(self) -> str: ...

    @property
    def requests(self) -> Sequence[Generate]: ...

    @property
    def streams(self) -> bool: ...

    def answer(self, generation: Generation) -> Answer:
        """A fresh one: after a restart nothing of the last attempt counts."""


class GenerationEndpoint:
    """An ASGI application for one path. `prepare` raises `RequestError` for what can't be served."""

    def __init__(self, service: Service, prepare: Callable[[Service, Request], Awaitable[Job]]) -> None:
        self._service = service
        self._prepare = prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[TIMER] = timer = RequestTimer(self._service.metrics)
        job = await self._prepare(self._service, Request(scope, receive))
        generation = self._service.engine.start(job.requests)
        watch = asyncio.create_task(_close_when_gone(receive, generation))
        try:
            await generation.accepted()
            send_answer = _send_stream if job.streams else _send_whole
            parts = _answer_parts(job, generation, timer, self._service.work)
            await send_answer(job, parts, generation, timer, send)
        except ClientGoneError:
            timer.aborted(len(job.requests))
            if not job.streams:  # of a stream the response has begun
                raise
        finally:
            watch.cancel()
            self._service.engine.forget(generation)


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
    sampling = job.requests[0].sampling
    has_logprobs = sampling.logprobs is not None or sampling.prompt_logprobs is not None
    attempt, answer = generation.attempt, job.answer(generation)
    while not answer.reply.done:
        arrivals = await generation.next()
        if generation.attempt != attempt:
            attempt, answer = generation.attempt, job.answer(generation)
        for arrival in arrivals:
            timer.output(arrival)
        asked = [output.prompt_logprobs for _, output, _ in arrivals if output.prompt_logprobs]
        echoes_many = any(len(each.chosen) > _MANY_BYTES for each in asked)
        events = await _written(work, partial(answer.push, arrivals), echoes_many)
        is_current = generation.attempt == attempt  # the replica may have died meanwhile
        if is_current:
            answer.reply.end_stopped()
        if events and (is_current or answer.reply.done):
            yield events
    usage = answer.reply.usage()
    reasons = [choice.finish or "" for choice in answer.reply.choices]
    timer.finished(usage, reasons)
    is_long = usage.prompt_tokens + usage.completion_tokens > MANY_TOKENS
    yield await _written(work, answer.closing, has_logprobs and is_long)


async def _written(work: FairThreads, write: Callable[[], bytes], takes_long: bool) -> bytes:
    def steps() -> Steps[bytes]:
        return write()
        yield

    return await work.run(Caller(), steps()) if takes_long else write()
