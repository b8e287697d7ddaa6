"""Requests to one server, sent again while it is full or is being restarted."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from .api_client import ApiClient, ApiError, Piece
from .errors import BackendError, NoServerError

CONNECTIONS = 256
POOLS = 16  # pools that share the connections: httpcore looks at a whole pool for each request
FULL = (429, 503)
WAIT_S = 1.0  # seconds before a retry, if the server does not say how long
MAX_WAIT_S = 60.0
PATIENCE_S = 300.0  # seconds without a success before giving up on a server that refuses all requests
RESTART_S = 60.0  # seconds before giving up on a server that answered before and can't be reached
RESENDS = 3  # retries of a request whose connection broke


class HttpClient:
    """Sends a request again while the server is full or restarts. Gives up when no request of any program has
    succeeded for too long."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """Raises ValueError for an invalid URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"connect({url!r}): expected an address such as http://127.0.0.1:8000.")
        size = CONNECTIONS // POOLS
        self._pools = [ApiClient(url, api_key, connections=size, kept_connections=size) for _ in range(POOLS)]
        self.url = self._pools[0].url
        self._open = [0] * POOLS
        self._limit = AdaptiveLimit(CONNECTIONS)
        self._accepted_at: float | None = None

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON of the answer. Raises `BackendError` if the server can't answer."""
        attempts = _Attempts(self)
        while True:
            try:
                async with self._take_pool() as pool:
                    answer = await pool.request(method, path, body)
                    self._accept()
                    return answer
            except (httpx.TransportError, ApiError, UnicodeEncodeError) as error:
                await attempts.wait_after(error, path)

    async def pieces(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """Yields the pieces of a reply. No retry follows the first piece. Raises `BackendError`."""
        attempts = _Attempts(self)
        while True:
            try:
                async with self._take_pool() as pool, aclosing(pool.pieces(path, body)) as pieces:
                    async for piece in pieces:
                        if not attempts.is_over:
                            attempts.is_over = True
                            self._accept()
                        yield piece
                    return
            except (httpx.TransportError, ApiError, UnicodeEncodeError) as error:
                await attempts.wait_after(error, path)

    @asynccontextmanager
    async def _take_pool(self) -> AsyncGenerator[ApiClient, None]:
        """Waits until one more request may be open. Yields the pool with the fewest open requests."""
        async with self._limit:
            number = min(range(POOLS), key=self._open.__getitem__)
            self._open[number] += 1
            try:
                yield self._pools[number]
            except ApiError as error:
                if error.status in FULL:
                    self._limit.lower()
                raise
            finally:
                self._open[number] -= 1

    def _accept(self) -> None:
        self._accepted_at = time.monotonic()
        self._limit.grow()

    def seconds_without_success(self, begun: float) -> float:
        """Seconds since any request succeeded, or since `begun` (by `time.monotonic`) if that was later."""
        return time.monotonic() - max(begun, self._accepted_at or 0.0)

    @property
    def has_answered(self) -> bool:
        return self._accepted_at is not None


class _Attempts:
    """Decides on retries of one request, and waits before each. `is_over`: no retry is allowed."""

    def __init__(self, client: HttpClient) -> None:
        self.is_over = False
        self._client = client
        self._begun = time.monotonic()
        self._broken = 0

    async def wait_after(self, error: Exception, path: str) -> None:
        """Waits before a retry. Raises `BackendError` unless the server is full or may be restarting."""
        if isinstance(error, UnicodeEncodeError):
            found = error.object[error.start : error.end]
            raise BackendError(
                f"the prompt or an option contains {found!r}, half of a surrogate pair, which UTF-8 can't "
                "express: remove it, or decode the text with errors='replace'."
            ) from None
        waited = self._client.seconds_without_success(self._begun)
        if not isinstance(error, ApiError):
            self._broken += not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            may_return = self._client.has_answered and waited < RESTART_S and self._broken <= RESENDS
            if self.is_over or not may_return:
                kind = BackendError if self._client.has_answered else NoServerError
                reason = str(error) or type(error).__name__
                raise kind(f"no answer from {self._client.url} ({reason}). Is the server running?") from error
            await asyncio.sleep(WAIT_S * random.uniform(0.5, 1.5))
            return
        if error.status is None:
            raise BackendError(f"the reply was ended by an error: {error}" if self.is_over else str(error))
        if error.status not in FULL or waited > PATIENCE_S:
            raise BackendError(f"{path} was refused with {error}")
        pause = WAIT_S if error.retry_after_s is None else min(MAX_WAIT_S, max(0.0, error.retry_after_s))
        await asyncio.sleep(pause * random.uniform(1.0, 1.25))


class AdaptiveLimit:
    """An asynchronous context for each request. A refusal lowers the limit below the number of open requests.
    Each round of successes raises it by one. So most requests wait here, not for a `Retry-After`."""

    def __init__(self, max_open: int) -> None:
        self._max = max_open
        self._limit = float(max_open)
        self._open = 0
        self._turns: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        return int(self._limit)

    async def __aenter__(self) -> None:
        while self._open >= self.limit:
            turn = asyncio.get_running_loop().create_future()
            self._turns.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake()  # passes the place on to another request
                raise
        self._open += 1

    async def __aexit__(self, *_: object) -> None:
        self._open -= 1
        self._wake()

    def lower(self) -> None:
        """Lowers the limit after a refusal. Call it inside of the refused request's context."""
        self._limit = max(1.0, min(self._limit, self._open - 1))

    def grow(self) -> None:
        self._limit = min(self._max, self._limit + 1 / self._limit)

    def _wake(self) -> None:
        free = self.limit - self._open
        while free > 0 and self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
