"""How many requests a client has open at a time on a server that may be full."""

from __future__ import annotations

import asyncio
from collections import deque


class AdaptiveLimit:
    """An asynchronous context for each request. A refusal lowers the limit below the requests that are open;
    each round of successes raises it by one. So most requests wait here, not for a `Retry-After`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
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
                self._wake()  # another in place of this one
                raise
        self._open += 1

    async def __aexit__(self, *_: object) -> None:
        self._open -= 1
        self._wake()

    def refused(self) -> None:
        """Call it inside of the context of the refused request."""
        self._limit = max(1.0, min(self._limit, self._open - 1))

    def accepted(self) -> None:
        self._limit = min(self._most, self._limit + 1 / self._limit)

    def _wake(self) -> None:
        free = self.limit - self._open
        while free > 0 and self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
