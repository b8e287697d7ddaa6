"""How long a test's event loop was blocked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

BEAT_S = 0.002


class LoopWatch:
    """`longest` is the longest time in seconds between two turns of the loop."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(BEAT_S)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last - BEAT_S)
            last = now


@contextlib.asynccontextmanager
async def watched_loop() -> AsyncIterator[LoopWatch]:
    watch = LoopWatch()
    beating = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        beating.cancel()
