"""The events of a stream, as Anthropic's API has them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from anthropic_world import HELLO, TOOLS, AnthropicWorld, anthropic_world, called
from http_world import MODEL
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.asyncio(loop_scope="module")
CALL = called("weather", '{"city": "Paris"}')
REPLIES = [
    "",
    "Hello, how are you?",
    CALL,
    "I look. " + CALL + "\n" + called("clock", "{}"),
    "<think>\nHm, the cat.\n</think>\n\nFine.",
    "<think>\nHm.\n</think>\n\n" + CALL,
    "<think>\nHm, the cat sat",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[AnthropicWorld]:
    async with anthropic_world() as world:
        yield world


async def events(world: AnthropicWorld, **fields: Any) -> list[Any]:
    """The data of a stream's events, each of which is named after its type."""
    body = {"messages": HELLO, "max_tokens": 1000, "tools": TOOLS, "stream": True, **fields}
    response = await world.post(**body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["request-id"].startswith("req_")
    found = []
    for event in response.text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def test_half_of_a_surrogate_pair_becomes_a_replacement_character(world: AnthropicWorld) -> None:
    arguments = r'{"city": "\ud83d \ud83d\ude00 \\ud83d \udc00"}'
    world.says(called("weather", arguments))
    found = await events(world)
    parts = [each["delta"]["partial_json"] for each in found if each["type"] == "content_block_delta"]
    assert json.loads("".join(parts)) == {"city": "\ufffd \U0001f600 \\ud83d \ufffd"}
    assert all("\\ud83d " not in part.replace(r"\\\\", "") for part in parts)


async def test_a_stream_of_text_has_the_documented_events(world: AnthropicWorld) -> None:
    world.says("the cat")
    start, ping, begun, *deltas, ended, delta, stop = await events(world)
    message = start.pop("message")
    usage = message.pop("usage")
    assert start == {"type": "message_start"}
    assert message == {
        "id": message["id"],
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
    assert ping == {"type": "ping"}
    text = {"type": "text", "text": ""}
    assert begun == {"type": "content_block_start", "index": 0, "content_block": text}
    assert {(each["type"], each["index"], each["delta"]["type"]) for each in deltas} == {
        ("content_block_delta", 0, "text_delta")
    }
    assert "".join(each["delta"]["text"] for each in deltas) == "the cat"
    assert ended == {"type": "content_block_stop", "index": 0}
    final = delta.pop("usage")
    assert delta == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
    }
    assert stop == {"type": "message_stop"}
    inputs = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert all(final[name] == usage[name] for name in inputs)
    assert final["output_tokens"] == len(world.ids("the cat")) + 1 >= usage["output_tokens"]


@pytest.mark.parametrize("display", ["summarized", "omitted"])
@pytest.mark.parametrize("text", REPLIES)
async def test_a_stream_adds_up_to_the_whole_message(world: AnthropicWorld, text: str, display: str) -> None:
    world.says(text)
    fields: Any = {
        "model": MODEL,
        "messages": HELLO,
        "max_tokens": 1000,
        "tools": TOOLS,
        "thinking": {"type": "adaptive", "display": display},
    }
    whole = await world.client.messages.create(**fields)
    async with world.client.messages.stream(**fields) as stream:
        streamed = await stream.get_final_message()
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage == whole.usage
    assert [known(block) for block in streamed.content] == [known(block) for block in whole.content]


def known(block: Any) -> dict[str, Any]:
    """The fields of a block but for its id, which is drawn at random."""
    found = block.model_dump(exclude_none=True)
    return {name: value for name, value in found.items() if name not in ("id", "parsed_output")}


@settings(max_examples=20)
@given(text=st.text("abc <>/think\n{}", max_size=60), tokens_per_step=st.integers(1, 7))
async def test_whatever_a_model_says_its_blocks_are_in_order(
    world: AnthropicWorld, text: str, tokens_per_step: int
) -> None:
    world.says(text)
    world.running.tokens_per_step = tokens_per_step
    try:
        start, ping, *found, delta, stop = await events(world)
    finally:
        world.running.tokens_per_step = 1
    kinds = [each["type"] for each in (start, ping, delta, stop)]
    assert kinds == ["message_start", "ping", "message_delta", "message_stop"]
    opened = -1
    is_open = False
    for event in found:
        match event["type"]:
            case "content_block_start":
                opened += 1
                assert not is_open
                is_open = True
            case "content_block_stop":
                assert is_open
                is_open = False
            case kind:
                assert kind == "content_block_delta" and is_open
        assert event["index"] == opened
    assert not is_open


async def test_a_call_streams_its_input_as_json(world: AnthropicWorld) -> None:
    world.says(CALL)
    found = await events(world)
    (begun,) = [each["content_block"] for each in found if each["type"] == "content_block_start"]
    parts = [each["delta"] for each in found if each["type"] == "content_block_delta"]
    assert (begun["type"], begun["name"], begun["input"]) == ("tool_use", "weather", {})
    assert {part["type"] for part in parts} == {"input_json_delta"}
    assert json.loads("".join(part["partial_json"] for part in parts)) == {"city": "Paris"}
    assert len(parts) > 1


async def test_a_signature_comes_before_its_block_stops(world: AnthropicWorld) -> None:
    world.says("<think>\nHm.\n</think>\n\nFine.")
    found = [each for each in await events(world) if each.get("index") == 0]
    types = [each["delta"]["type"] for each in found if "delta" in each]
    assert set(types[:-1]) == {"thinking_delta"} and types[-1] == "signature_delta"
    assert found[-2]["delta"]["signature"]


async def test_edits_of_the_context_are_told_at_the_end(world: AnthropicWorld) -> None:
    world.says("the cat")
    edits: Any = [{"type": "clear_thinking_20251015", "keep": "all"}]
    async with world.client.beta.messages.stream(
        model=MODEL,
        messages=HELLO,
        max_tokens=50,
        betas=["context-management-2025-06-27"],
        context_management={"edits": edits},
    ) as stream:
        message = await stream.get_final_message()
    assert message.context_management is not None and message.context_management.applied_edits == []


async def test_a_stop_sequence_is_named_at_the_end(world: AnthropicWorld) -> None:
    world.says("the cat sat on the mat")
    *_, delta, _ = await events(world, stop_sequences=[" sat"])
    assert delta["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": " sat"}


async def test_a_failure_amid_a_stream_is_an_error_event() -> None:
    async with anthropic_world() as world:
        world.says("the cat sat on the mat")
        world.running.pauses = True
        with pytest.raises(anthropic.APIStatusError) as caught:
            async with world.client.messages.stream(model=MODEL, messages=HELLO, max_tokens=50) as stream:
                async for event in stream:
                    if event.type == "text":
                        await world.http_world.kill_replica()
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "overloaded_error")
    assert body["request_id"] == caught.value.request_id
