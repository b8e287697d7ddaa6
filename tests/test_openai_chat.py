"""Chat completions as OpenAI's own client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from http_world import MODEL, HttpWorld, http_world

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = [{"role": "user", "content": "Hello"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world() as world:
        yield world


async def test_a_reply_comes_whole(world: HttpWorld) -> None:
    world.script = world.says("I am fine, thank you.")
    completion = await world.client.chat.completions.create(model=MODEL, messages=HELLO)
    assert completion.choices[0].message.content == "I am fine, thank you."
    assert completion.choices[0].finish_reason == "stop"


async def test_a_reply_comes_as_a_stream(world: HttpWorld) -> None:
    world.script = world.says("I am fine, thank you.")
    stream = await world.client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "I am fine, thank you."
