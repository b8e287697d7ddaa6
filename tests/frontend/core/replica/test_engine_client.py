"""The receiving loop gives outputs to their requests, and the other tasks of the event loop their turns."""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from arbora.frontend.core.replica.engine_client import EngineClient
from arbora.frontend.core.replica.generation import Arrival, Generation
from arbora.runtime.messages import Generate, Output, Outputs, PeerDown, PeerUp, TokenizerInbox
from arbora.runtime.sampling_params import SamplingParams
from fake_scheduler import packed, ready, unpacked

pytestmark = pytest.mark.asyncio


class Inbox:
    """Messages in memory. To receive one that waits gives the event loop no turn, as with a socket."""

    def __init__(self) -> None:
        self._messages = deque[TokenizerInbox]()
        self._has_come = asyncio.Event()

    def add(self, message: TokenizerInbox) -> None:
        self._messages.append(message)
        self._has_come.set()

    @property
    def has_more(self) -> bool:
        return bool(self._messages)

    def move_to(self, *epochs: int) -> None:
        pass

    async def receive(self) -> TokenizerInbox:
        while not self._messages:
            self._has_come.clear()
            await self._has_come.wait()
        return self._messages.popleft()

    def close(self) -> None:
        pass


class World:
    """An engine client with such an inbox, and a request that it has sent."""

    def __init__(self, directory: Path) -> None:
        self.inbox = Inbox()
        engine = EngineClient(directory, 0)
        engine._inbox.close()
        engine._inbox = cast(Any, self.inbox)
        engine._receive(PeerUp(1, ready(256, 256)), is_late=False)
        request = Generate("r", 0, packed([1]), SamplingParams(max_tokens=1000))
        self.generation: Generation = engine.start([request])
        self.receiving = asyncio.create_task(engine.run())
        self.engine = engine

    def output(self, token: int) -> Outputs:
        return Outputs([Output("r", packed([token]))])

    async def close(self) -> None:
        self.receiving.cancel()
        await asyncio.gather(self.receiving, return_exceptions=True)
        self.engine._receive(PeerDown("replica"), is_late=False)
        self.engine.close()


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="arb") as name:
        world = World(Path(name))
        yield world
        await world.close()


def tokens(arrivals: list[Arrival]) -> list[int]:
    return [token for arrival in arrivals for token in unpacked(arrival.output.tokens)]


async def test_outputs_are_read_together_if_a_later_message_waits(world: World) -> None:
    taken: list[Arrival] = []

    def take(choice: int, output: Output, time: float) -> bool:
        taken.append(Arrival(choice, output, time))
        return True

    reading = asyncio.create_task(world.generation.next(take))
    await asyncio.sleep(0)
    world.inbox.add(world.output(1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert tokens(taken) == [1] and not reading.done()
    for token in (2, 3, 4):
        world.inbox.add(world.output(token))
    assert tokens(await reading) == [2, 3, 4]
    assert tokens(taken) == [1]
