"""How many requests are open at a time."""

from __future__ import annotations

import asyncio
import contextlib

from arbora.frontend.language.http_client import AdaptiveLimit


class Server:
    """Accepts `places` requests at a time."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.open = 0
        self.refusals = 0

    async def ask(self, limit: AdaptiveLimit) -> None:
        while True:
            async with limit:
                if self.open < self.places:
                    self.open += 1
                    await asyncio.sleep(0.001)
                    self.open -= 1
                    limit.grow()
                    return
                self.refusals += 1
                limit.lower()
            await asyncio.sleep(0.01)


async def test_the_limit_falls_to_what_the_server_takes_and_rises_again() -> None:
    limit, server = AdaptiveLimit(64), Server(4)
    await asyncio.gather(*(server.ask(limit) for _ in range(200)))
    assert 0 < server.refusals < 100
    assert limit.limit <= 8
    server.places = 64
    await asyncio.gather(*(server.ask(limit) for _ in range(400)))
    assert limit.limit > 20


async def test_no_request_waits_for_ever_behind_cancelled_ones() -> None:
    limit = AdaptiveLimit(2)

    async def hold(seconds: float) -> None:
        async with limit:
            await asyncio.sleep(seconds)

    tasks = [asyncio.create_task(hold(0.02)) for _ in range(30)]
    await asyncio.sleep(0.01)
    for task in tasks[2:29]:
        task.cancel()
    async with asyncio.timeout(5):
        await tasks[29]
    for task in tasks[:29]:
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_one_request_is_always_sent() -> None:
    limit = AdaptiveLimit(8)
    async with limit:
        for _ in range(20):
            limit.lower()
    assert limit.limit == 1
    async with asyncio.timeout(5), limit:
        pass
