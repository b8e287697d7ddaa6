"""Sends a prepared request to the scheduler and its answer to the client, streamed or whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...runtime.api_keys import ApiKey
from ...runtime.errors import RequestError
from ...runtime.messages import BACKGROUND_PRIORITY, Generate, Tokens
from ..core.attempts import Answer, run_attempts, run_off_loop
from ..core.draft import Draft, Prompt
from ..core.prepare import Job, prepare, tokenize
from ..core.replica.generation import Generation
from ..core.reply import MANY_TOKENS, Reply
from ..core.service import Service
from ..core.work.caller import Caller, ClientGoneError
from ..core.work.thread_pool import FairThreadPool
from .allowances import with_key_limits
from .apis import ALLOWANCES, with_short_texts
from .body_kind import BodyKind
from .cache_miss_tracker import CacheMissTracker
from .http_service import HttpService
from .metrics import RequestTimer
from .model_choice import choose_model
from .outcome import MODEL_NAME, TIMER
from .server.exchange import BODY_WRITER, BodyWriter
from .tenants import SENT_KEY, cache_scope, caller_of, tenant_of
from .time_limit import TimeLimit

IN_BACKGROUND = "arbora.in_background"
"""Key in a request's ASGI scope: true if the request starts after all other requests."""
T = TypeVar("T", bound=msgspec.Struct)
log = logging.getLogger(__name__)

EVENT_STREAM = b"text/event-stream; charset=utf-8"
_STREAM_HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


HttpAnswer: TypeAlias = Answer[bytes, bytes]
"""An answer over HTTP. `take` returns the events to send now, none if the answer is sent whole. `closing`
returns the last events, or the whole body."""


Detached: TypeAlias = "Callable[[HttpJob, CacheMissTracker, ApiKey | None, TimeLimit], Awaitable[Response]]"


async def _unchanged(last: bytes) -> bytes:
    return last


@dataclass(frozen=True)
class HttpJob:
    """A job and the way to answer its HTTP request. `answer` turns a reply, and `error_event` an error inside
    a stream, into the wire format, whose media type is `stream_type`. `finished` takes the last part of the
    answer and returns the part to send. `detached` starts the job without its client, and returns the answer.
    It takes the job with the limits of its API key, which `prepare` does not know, and the time limit of its
    request."""

    job: Job
    answer: Callable[[Reply], HttpAnswer]
    error_event: Callable[[RequestError], bytes]
    finished: Callable[[bytes], Awaitable[bytes]] = _unchanged
    stream_type: bytes = EVENT_STREAM
    detached: Detached | None = None

    @property
    def streams(self) -> bool:
        return self.job.draft.streams


@dataclass(frozen=True)
class Incoming(Generic[T]):
    """A request whose body has been read."""

    http: HttpService
    request: Request
    body: T
    caller: Caller

    async def prepare(self, id: str, read: Callable[[Service, T], Draft]) -> Job:
        """Makes the job `id` from the draft of `read`. Raises `RequestError` if it can't be served."""
        service, config = self.http.service, self.http.service.config
        service.engine.check_serving()
        draft = await service.work.call(self.caller, read, service, self.body)
        tenant = tenant_of(self.request, draft.user, config)
        return await prepare(service, id, draft, self.caller, cache_scope(self.request, config), tenant)

    async def tokenize(self, read: Callable[[Service, T], Prompt], salt: str | None) -> Tokens:
        """The tokens of the prompt that `read` makes. Raises `RequestError`."""
        service = self.http.service
        prompt = await service.work.call(self.caller, read, service, self.body)
        scope = cache_scope(self.request, service.config)
        model: str | None = getattr(self.body, "model", None)
        return await tokenize(service, prompt, salt, self.caller, scope, model=model)


def _always(body: object) -> bool:
    return True


async def read_body(
    http: HttpService, request: Request, kind: BodyKind[T], loads: Callable[[T], bool] = _always
) -> Incoming[T]:
    """Reads and checks a request's body, and loads its model if `loads` says so of the body; the result has
    the service of that model. Raises `RequestError` for a body that can't be served."""
    caller = caller_of(request, http.service.config)
    body = await http.bodies.read(request, caller, kind)
    request.scope[MODEL_NAME] = name = getattr(body, "model", None)
    http = await choose_model(http, request, name, caller, loads=loads(body))
    messages = getattr(body, "messages", None) or ()
    return Incoming(http, request, body, caller.with_messages(len(messages)))


class GenerationEndpoint:
    """An ASGI application for one path. `prepare` raises `RequestError` if a request can't be served, and
    returns a response if it needs no generation. `prepare` itself starts no generation."""

    def __init__(
        self, http: HttpService, prepare: Callable[[HttpService, Request], Awaitable[HttpJob | Response]]
    ) -> None:
        self.prepare = prepare
        self._http = http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key: ApiKey | None = scope.get(SENT_KEY)
        scope[TIMER] = timer = RequestTimer(self._http.metrics, key)
        limit = TimeLimit(self._http.service.config.request_timeout)
        async with limit.of_preparation():
            prepared = await self._prepare(Request(scope, receive), key, limit)
        if isinstance(prepared, Response):
            await prepared(scope, receive, send)
            return
        job, cache = prepared
        service = job.job.service
        generation = service.engine.start(with_background(scope, job.job.requests))
        ending = limit.end_later(generation)
        watch = asyncio.create_task(close_when_gone(receive, generation))
        try:
            await generation.accepted()
            scope[ALLOWANCES] = generation.allowances
            timer.accepted(job.job.requests)
            writer = scope.get(BODY_WRITER) if job.streams else None
            parts = answer_parts(job, generation, timer, service.work, cache, writer)
            if job.streams:
                await _send_stream(job, parts, generation, timer, send)
            else:
                await _send_whole(job, parts, send)
            await cache.count()
        except ClientGoneError:
            timer.aborted(len(job.job.requests))
            if not job.streams:  # a stream that fails has begun its response already
                raise
        finally:
            watch.cancel()
            if ending is not None:
                ending.cancel()
            service.engine.forget(generation)

    async def _prepare(
        self, request: Request, key: ApiKey | None, limit: TimeLimit
    ) -> tuple[HttpJob, CacheMissTracker] | Response:
        """The job to run, or the answer to a request that needs no generation or is computed without its
        client."""
        job = await self.prepare(self._http, request)
        if isinstance(job, Response):
            return job
        if key is not None:
            job = replace(job, job=with_key_limits(job.job, key))
        cache = await CacheMissTracker.begin(self._http.of(job.job.service), job.job, request.scope)
        return (job, cache) if job.detached is None else await job.detached(job, cache, key, limit)


def with_background(scope: Scope, requests: Sequence[Generate]) -> Sequence[Generate]:
    """The requests, with the lowest priority if the HTTP request belongs to a batch."""
    if not scope.get(IN_BACKGROUND):
        return requests
    return [msgspec.structs.replace(each, priority=BACKGROUND_PRIORITY) for each in requests]


async def close_when_gone(receive: Receive, generation: Generation) -> None:
    """Aborts the generation once the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.close()


async def _send_whole(job: HttpJob, parts: AsyncIterator[bytes], send: Send) -> None:
    *_, body = [data async for data in parts]
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        _id_header(job),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_stream(
    job: HttpJob, parts: AsyncIterator[bytes], generation: Generation, timer: RequestTimer, send: Send
) -> None:
    """Sends the headers at once, but the first event only with the first output: clients measure the time to
    the first token by it."""
    headers = [(b"content-type", job.stream_type), *_STREAM_HEADERS, _id_header(job)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        async for events in parts:
            generation.token_left = True
            await send({"type": "http.response.body", "body": events, "more_body": True})
    except RequestError as error:
        await _send_failure(job, error, timer, send)
    except ClientGoneError:
        raise
    except Exception:
        log.exception("a stream failed")
        await _send_failure(job, internal_error(), timer, send)
    await send({"type": "http.response.body", "body": b""})


def refusal_of(error: Exception, failure: str) -> RequestError:
    """The error that a client sees. A bug of the server is logged as `failure`."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RecursionError):  # the server recurses only over data that the client sent
        return RequestError("The request's JSON is nested too deeply.", code="invalid_json")
    log.error(failure, exc_info=error)
    return internal_error()


def internal_error() -> RequestError:
    """The error that a client sees for a bug of the server. The log has the details."""
    return RequestError("The server failed to answer this request.", status=500, code="internal_error")


async def _send_failure(job: HttpJob, error: RequestError, timer: RequestTimer, send: Send) -> None:
    timer.failed(error)
    event = job.error_event(with_short_texts(error))
    await send({"type": "http.response.body", "body": event, "more_body": True})


def _id_header(job: HttpJob) -> tuple[bytes, bytes]:
    """The header of the reply's id, which OpenAI's clients show as the completion's `_request_id`."""
    return b"x-request-id", job.job.id.encode()


async def answer_parts(
    job: HttpJob,
    generation: Generation,
    timer: RequestTimer,
    work: FairThreadPool,
    cache: CacheMissTracker,
    writer: BodyWriter | None = None,
) -> AsyncIterator[bytes]:
    """Yields the bytes to send, in parts that are never empty. The last part closes the answer. With a
    `writer`, some parts are written instead of being yielded.

    Log-probabilities of many tokens are written on another thread, as that may take a second.
    """
    sampling = job.job.requests[0].sampling
    has_logprobs = sampling.logprobs is not None or sampling.prompt_logprobs is not None

    def begin() -> HttpAnswer:
        return job.answer(job.job.new_reply(generation))

    answer: HttpAnswer | None = None
    try:
        async for attempt, events in run_attempts(generation, begin, work, timer.output, writer):
            answer = attempt
            cache.computed(answer.reply)
            if events:
                yield events
    finally:
        if answer is not None:
            timer.reached(answer.reply)
    assert answer is not None
    await asyncio.sleep(0)  # lets other streams send the tokens of this step first
    usage = answer.reply.usage()
    await cache.ended(answer.reply)
    timer.finished(usage, [choice.finish or "" for choice in answer.reply.choices])
    is_long = usage.prompt_tokens + usage.completion_tokens > MANY_TOKENS
    last = await run_off_loop(work, answer.closing) if has_logprobs and is_long else answer.closing()
    yield await job.finished(last)
