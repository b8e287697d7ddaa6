"""When a stream's first event is sent, and what it has: clients take it for the first token."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from http_world import HELLO, MODEL, HttpWorld, http_world
from tiny_model import CHATML

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
TEMPLATE = CHATML + "{# <tool_call> </think> #}{% if tools %}{{ tools | tojson }}{% endif %}"
TOOLS: Any = [{"type": "function", "function": {"name": "look"}}]
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
OPENING = {"role": "assistant", "content": ""}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(TEMPLATE, context_length=1024) as world:
        yield world


async def deltas(world: HttpWorld, **fields: Any) -> list[Any]:
    body = {"model": MODEL, "messages": HELLO, "stream": True, **fields}
    response = await world.http.post(CHAT, json=body)
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]


async def test_the_role_comes_with_the_first_text(world: HttpWorld) -> None:
    world.script = world.says("the cat sat")
    world.running.pauses = True
    body = {"messages": HELLO, "stream": True}
    received = b""
    try:
        async with world.http.stream("POST", CHAT, json=body) as response:
            async for part in response.aiter_bytes():
                received += part
                if received.count(b"data: ") >= 2:
                    break
    finally:
        world.running.pauses = False
        world.running.gate.set()
    assert b'"delta":{"role":"assistant","content":""}' in received.split(b"\n\n")[0]
    assert world.text(world.ids("the cat sat")[:1]).encode() in received.split(b"\n\n")[1]


async def test_the_first_delta_of_a_call_has_the_role_and_no_content(world: HttpWorld) -> None:
    world.script = world.says(CALL)
    first, *others = await deltas(world, tools=TOOLS, tool_choice="required")
    (call,) = first.pop("tool_calls")
    assert first == {"role": "assistant", "content": None}
    assert (call["index"], call["type"], call["function"]["name"]) == (0, "function", "look")
    assert not any("role" in delta or "content" in delta for delta in others)


async def test_a_call_after_text_has_no_role_of_its_own(world: HttpWorld) -> None:
    world.script = world.says("I look. " + CALL)
    first, *others = await deltas(world, tools=TOOLS)
    assert first == OPENING
    assert not any("role" in delta for delta in others)


@pytest.mark.parametrize("text", ["", "<think>\nHm.\n</think>\n\nFine.", "the cat"])
async def test_every_stream_begins_with_its_role_once(world: HttpWorld, text: str) -> None:
    world.script = world.says(text)
    first, *others, last = await deltas(world)
    assert (first, last) == (OPENING, {})
    assert not any("role" in delta for delta in others)
