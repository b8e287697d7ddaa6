"""Bounds how many lines of batches are under way."""

from __future__ import annotations

import asyncio
import contextlib

from ....runtime.config import ServeConfig
from ...core.replica.engine_client import EngineClient

RUNNING_PART = 4
"""All lines together may have 1 / RUNNING_PART of the slots of --max-running."""
BUSY_PART = 8
"""While other requests are open, lines may have 1 / BUSY_PART of these."""
LOOK_AGAIN_S = 0.1


class Slots:
    """A line runs while it has a slot. Batches of this process get slots in the order in which they ask."""

    def __init__(self, config: ServeConfig, engine: EngineClient) -> None:
        shared = RUNNING_PART * config.api_workers
        self._most = max(1, min(config.max_running // shared, config.max_waiting // 2))
        self._most_if_busy = max(1, self._most // BUSY_PART)
        self._engine = engine
        self._taken = 0
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def take(self) -> None:
        async with self._turn:
            while self._taken >= self._limit():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_S):  # wait_for may lose a cancellation
                        await self._changed.wait()
            self._taken += 1

    def free(self) -> None:
        self._taken -= 1
        self._changed.set()

    async def sleep(self, seconds: float) -> None:
        """Frees the caller's slot meanwhile. It has a slot again at the end, also if it is cancelled."""
        self.free()
        try:
            await asyncio.sleep(seconds)
            await self.take()
        except asyncio.CancelledError:
            self._taken += 1
            raise

    def _limit(self) -> int:
        is_busy = self._engine.open_requests > self._taken
        return self._most_if_busy if is_busy else self._most
