"""Requests to one server, sent again while it is full or is being restarted."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from .adaptive_limit import AdaptiveLimit
from .errors import BackendError, NoServerError

CONNECTIONS = 256
POOLS = 16  # for each request httpcore looks at all connections of a pool, so several pools share them
CONNECT_S = 10.0
FULL = (429, 503)
WAIT_S = 1.0  # before a request is sent again, if the server does not say how long
LONGEST_WAIT_S = 60.0
PATIENCE_S = 300.0  # for a server that refuses every request
RESTART_S = 60.0  # for a server that answered before and can't be reached
RESENDS = 3  # of a request whose connection broke


class HttpClient:
    """Sends a request again while the server is full or restarts. Gives up when no request of any program has
    succeeded for too long."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = _base(url)
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(
            max_connections=CONNECTIONS // POOLS, max_keepalive_connections=CONNECTIONS // POOLS
        )
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        tls = httpx.create_ssl_context()
        self._pools = [
            httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, limits=limits, verify=tls)
            for _ in range(POOLS)
        ]
        self._open = [0] * POOLS
        self._limit = AdaptiveLimit(CONNECTIONS)
        self._accepted_at: float | None = None

    async def get(self, path: str) -> Any:
        return await self._json("GET", path, None)

    async def delete(self, path: str) -> Any:
        return await self._json("DELETE", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return await self._json("POST", path, body)

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The JSON of each event. Once the first has arrived, the request is not sent again."""
        attempts = _Attempts(self)
        content = _encoded(body)
        while True:
            try:
                async with (
                    self._limit,
                    self._pool() as pool,
                    pool.stream("POST", path, content=content, headers=_JSON) as answer,
                ):
                    if self._is_accepted(answer):
                        async for line in answer.aiter_lines():
                            if line.startswith("data: {"):
                                attempts.is_over = True
                                yield msgspec.json.decode(line[6:])
                        return
                    await answer.aread()
            except httpx.TransportError as error:
                await attempts.after_failure(error)
            else:
                await attempts.after_refusal(answer, path)

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        """Raises `BackendError` for an answer that is no success, or no JSON."""
        attempts = _Attempts(self)
        content = None if body is None else _encoded(body)
        while True:
            try:
                async with self._limit, self._pool() as pool:
                    answer = await pool.request(method, path, content=content, headers=_JSON)
                    is_accepted = self._is_accepted(answer)
            except httpx.TransportError as error:
                await attempts.after_failure(error)
                continue
            if is_accepted:
                return self._decoded(answer, path)
            await attempts.after_refusal(answer, path)

    @asynccontextmanager
    async def _pool(self) -> AsyncGenerator[httpx.AsyncClient, None]:
        """The pool with the fewest open requests."""
        number = min(range(POOLS), key=self._open.__getitem__)
        self._open[number] += 1
        try:
            yield self._pools[number]
        finally:
            self._open[number] -= 1

    def _is_accepted(self, answer: httpx.Response) -> bool:
        if answer.is_success:
            self._accepted_at = time.monotonic()
            self._limit.accepted()
        elif answer.status_code in FULL:
            self._limit.refused()
        return answer.is_success

    def _decoded(self, answer: httpx.Response, path: str) -> Any:
        try:
            return answer.json()
        except ValueError:
            raise BackendError(
                f"{self.url} answers {path} with {answer.text[:60]!r}, which is no JSON: is this a server "
                "with OpenAI's API?"
            ) from None

    def seconds_without_success(self, begun: float) -> float:
        """`begun`: when the request was first sent, by `time.monotonic`."""
        return time.monotonic() - max(begun, self._accepted_at or 0.0)

    @property
    def has_answered(self) -> bool:
        return self._accepted_at is not None


class _Attempts:
    """Decides whether one request is sent again, and waits until then. `is_over`: it must not be."""

    def __init__(self, client: HttpClient) -> None:
        self.is_over = False
        self._client = client
        self._begun = time.monotonic()
        self._broken = 0

    async def after_failure(self, error: httpx.TransportError) -> None:
        """Raises `BackendError` unless the server may be restarting."""
        self._broken += not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        waited = self._client.seconds_without_success(self._begun)
        may_return = self._client.has_answered and waited < RESTART_S and self._broken <= RESENDS
        if self.is_over or not may_return:
            kind = BackendError if self._client.has_answered else NoServerError
            raise kind(
                f"no answer from {self._client.url} ({error or type(error).__name__}). Is the server running?"
            ) from error
        await asyncio.sleep(WAIT_S * random.uniform(0.5, 1.5))

    async def after_refusal(self, answer: httpx.Response, path: str) -> None:
        """Raises `BackendError` unless the server was full and may have capacity later."""
        waited = self._client.seconds_without_success(self._begun)
        if answer.status_code not in FULL or waited > PATIENCE_S:
            raise BackendError(f"{path} was refused with status {answer.status_code}: {_reason(answer)}")
        await asyncio.sleep(_wait(answer) * random.uniform(1.0, 1.25))


_JSON = {"Content-Type": "application/json"}


def _encoded(body: Mapping[str, Any]) -> bytes:
    """Raises `BackendError` for text that has no UTF-8 form."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        found = error.object[error.start : error.end]
        raise BackendError(
            f"the prompt or an option contains {found!r}, half of a surrogate pair, which UTF-8 can't "
            "express: remove it, or decode the text with errors='replace'."
        ) from None


def _base(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"connect({url!r}): expected an address such as http://127.0.0.1:8000.")
    return url.rstrip("/").removesuffix("/v1")


def _wait(answer: httpx.Response) -> float:
    try:
        return min(LONGEST_WAIT_S, max(0.0, float(answer.headers["retry-after"])))
    except (KeyError, ValueError):
        return WAIT_S


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:500]
