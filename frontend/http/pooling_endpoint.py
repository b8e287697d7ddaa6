"""The endpoint of requests whose inputs become vectors."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...runtime.api_keys import ApiKey
from ...runtime.messages import Pooling
from ..core.pooling import (
    PooledInputs,
    PoolingDraft,
    PoolingJob,
    Vectors,
    check_pooling,
    pool,
    prepare_pooling,
)
from ..core.service import Service
from ..core.validation import invalid_field
from ..core.work.caller import Caller, ClientGoneError
from ..core.work.thread_pool import Steps, run_now
from .allowances import limit_requests
from .apis import ALLOWANCES, json_response
from .endpoint import Incoming, with_background
from .http_service import HttpService
from .metrics import RequestTimer
from .outcome import TIMER
from .tenants import SENT_KEY, cache_scope, tenant_of
from .time_limit import TimeLimit

T = TypeVar("T", bound=msgspec.Struct)
STEP_NUMBERS = 8192
"""numbers that take about 1 ms to write as JSON"""
STEP_CHARACTERS = 1 << 18
"""characters that take about 1 ms to write as JSON"""


@dataclass(frozen=True)
class HttpPooling:
    """A job, and the function that makes the body of its answer, which has `characters` of the request."""

    job: PoolingJob
    body: Callable[[PooledInputs], Steps[bytes]]
    characters: int = 0


Prepare: TypeAlias = Callable[[HttpService, Request], Awaitable[HttpPooling | Response]]


async def prepare_inputs(incoming: Incoming[T], id: str, draft: PoolingDraft) -> PoolingJob:
    """The job of a request whose body has been read. Raises `RequestError`."""
    request, service = incoming.request, incoming.http.service
    tenant = tenant_of(request, draft.user, service.config)
    scope = cache_scope(request, service.config)
    return await prepare_pooling(service, id, draft, incoming.caller, scope, tenant)


def check_embeds(service: Service) -> Pooling:
    """Raises `RequestError` if the model makes no embeddings."""
    _, pooling = check_pooling(service)
    if pooling.labels:
        raise invalid_field(
            "model",
            "is a classifier and makes no embeddings: use /v1/classify, /v1/score or /v1/rerank",
            "unsupported_task",
        )
    return pooling


def write_rows(vectors: Vectors, *, is_base64: bool = False) -> Steps[list[bytes]]:
    """The JSON of each vector: a list of numbers, or the base64 of its float32 numbers."""
    step = max(1, STEP_NUMBERS // vectors.shape[1])
    written: list[bytes] = []
    for start in range(0, len(vectors), step):
        rows = np.ascontiguousarray(vectors[start : start + step], "<f4")
        if is_base64:
            written += [b'"%b"' % base64.b64encode(row) for row in rows]
        else:
            written += [msgspec.json.encode(row) for row in rows.tolist()]
        yield
    return written


class PoolingEndpoint:
    """An ASGI application for one path. `prepare` raises `RequestError` if a request can't be served, and
    returns a response if it has no inputs."""

    def __init__(self, http: HttpService, prepare: Prepare) -> None:
        self._http = http
        self._prepare = prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key: ApiKey | None = scope.get(SENT_KEY)
        scope[TIMER] = timer = RequestTimer(self._http.metrics, key)
        async with TimeLimit(self._http.service.config.request_timeout).of_preparation():
            prepared = await self._prepare(self._http, Request(scope, receive))
            if isinstance(prepared, Response):
                await prepared(scope, receive, send)
                return
            job = prepared.job
            requests = job.requests
            if key is not None:
                requests = limit_requests(requests, key, job.draft.priority, job.prompt_tokens)
            requests = with_background(scope, requests)
            timer.accepted(requests)
            try:
                pooled = await _unless_gone(receive, replace(job, requests=requests), timer)
            except ClientGoneError:
                timer.aborted(len(requests))
                raise
            scope[ALLOWANCES] = pooled.allowances
            timer.count_usage(pooled.usage)
            timer.finished(pooled.usage, ["stop"] * len(requests))
            body = await self._write(prepared, pooled)
        await json_response(body)(scope, receive, send)

    async def _write(self, prepared: HttpPooling, pooled: PooledInputs) -> bytes:
        steps = prepared.body(pooled)
        if pooled.vectors.size <= STEP_NUMBERS and prepared.characters <= STEP_CHARACTERS:
            return run_now(steps)
        return await self._http.service.work.run(Caller(), steps)


async def _unless_gone(receive: Receive, job: PoolingJob, timer: RequestTimer) -> PooledInputs:
    """The vectors. Raises `ClientGoneError` once the client has disconnected."""

    async def wait_until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    loop = asyncio.get_running_loop()
    pooling = asyncio.ensure_future(
        pool(job, lambda number, output: timer.output(number, output, loop.time()))
    )
    leaving = asyncio.ensure_future(wait_until_gone())
    try:
        await asyncio.wait((pooling, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not pooling.done():
            raise ClientGoneError
        return pooling.result()
    finally:
        leaving.cancel()
        pooling.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await pooling
