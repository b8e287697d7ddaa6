"""Limits how many requests of one process the scheduler has at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Permits:
    """`max_permits` permits. Holders come in the order in which they ask."""

    def __init__(self, max_permits: int) -> None:
        self._max_permits = max_permits
        self._free = asyncio.Semaphore(max_permits)
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def hold(self, count: int) -> AsyncIterator[None]:
        """Holds `count` permits, or all if there are fewer."""
        taken = 0
        try:
            async with self._turn:  # two holders with half of their permits would block each other
                while taken < min(count, self._max_permits):
                    await self._free.acquire()
                    taken += 1
            yield
        finally:
            for _ in range(taken):
                self._free.release()
