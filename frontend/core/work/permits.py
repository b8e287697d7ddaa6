"""Limits how many requests of one process the scheduler has at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator


class Permits:
    """`max_permits` permits, for which tenants take turns. Holders of one tenant come in the order in which
    they ask."""

    def __init__(self, max_permits: int) -> None:
        self._max_permits = self._free = max_permits
        self._waiting: OrderedDict[str, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def hold(self, count: int, tenant: str = "") -> AsyncIterator[None]:
        """Holds `count` permits, or all if there are fewer."""
        count = min(count, self._max_permits)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append((count, granted))
        self._grant()
        try:
            await granted
            yield
        finally:
            self._free += 0 if granted.cancelled() else count
            self._grant()

    def _grant(self) -> None:
        """Gives permits to the next holders. If one needs more than are free, all others wait for it."""
        while self._waiting:
            tenant, holders = next(iter(self._waiting.items()))
            count, granted = holders[0]
            if not granted.cancelled():
                if count > self._free:
                    return
                self._free -= count
                granted.set_result(None)
            holders.popleft()
            del self._waiting[tenant]
            if holders:
                self._waiting[tenant] = holders
