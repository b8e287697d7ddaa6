"""The receiving loop gives outputs to their requests, and the other tasks of the event loop their turns."""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from arbora.frontend.core.replica.engine_client import EngineClient
from arbora.frontend.core.replica.generation import Arrival, Generation
from arbora.frontend.core.replica.model_use import ModelUse
from arbora.runtime.errors import RequestError
from arbora.runtime.messages import (
    Accepted,
    Generate,
    LeaveModel,
    Message,
    ModelState,
    Output,
    Outputs,
    PeerDown,
    PeerUp,
    TokenizerInbox,
)
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


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="arb") as name:
        yield Path(name)


@pytest_asyncio.fixture
async def world(directory: Path) -> AsyncIterator[World]:
    world = World(directory)
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


async def test_a_request_whose_model_is_unloaded_before_it_is_sent_waits_until_it_is_loaded(
    directory: Path,
) -> None:
    """Its hold may reach the supervisor when that has just decided to unload the model."""
    sent: list[Message] = []
    engine = EngineClient(directory, 0, use=ModelUse(0, 1, 0.0, sent.append))

    def receive(*messages: TokenizerInbox) -> None:
        for message in messages:
            engine._receive(message, is_late=False)

    receive(ModelState("loaded"), PeerUp(1, ready(256, 256)))
    assert engine.use is not None
    hold = engine.use.hold()
    receive(ModelState("unloaded"), PeerDown("replica"), ModelState("loading"))
    assert engine.check_serving().page_size == 16, "its prompt can be prepared"
    with pytest.raises(RequestError, match="starting"):
        engine.check_responding()
    waiting = engine.start([Generate("r", 0, packed([1]), SamplingParams(max_tokens=9))])
    gone = engine.start([Generate("s", 0, packed([1]), SamplingParams(max_tokens=9))])
    engine.forget(gone)
    accepting = asyncio.create_task(waiting.accepted())
    await asyncio.sleep(0)
    assert not accepting.done() and engine.open_requests == 1 and not engine.idle.is_set()
    receive(PeerUp(2, ready(256, 256)), ModelState("loaded"), Accepted("r"), Accepted("s"))
    await accepting
    assert waiting.replica == 0
    engine.forget(waiting)
    hold.end()
    assert isinstance(sent[-1], LeaveModel)
    receive(ModelState("unloaded"), PeerDown("replica"))
    with pytest.raises(RequestError, match="not loaded"):
        engine.check_serving()
    engine.close()


async def test_a_request_that_waits_for_its_model_gets_the_reason_why_it_can_not_be_loaded(
    directory: Path,
) -> None:
    engine = EngineClient(directory, 0, use=ModelUse(0, 1, 0.0, lambda message: None))
    for message in (PeerUp(1, ready(256, 256)), ModelState("loading"), PeerDown("replica")):
        engine._receive(message, is_late=False)
    assert engine.use is not None
    engine.use.hold()
    waiting = engine.start([Generate("r", 0, packed([1]), SamplingParams(max_tokens=9))])
    engine._receive(ModelState("unloaded", error="no room"), is_late=False)
    with pytest.raises(RequestError, match="could not be loaded: no room"):
        await waiting.accepted()
    with pytest.raises(RequestError, match="could not be loaded: no room"):
        engine.check_serving()
    engine.close()
