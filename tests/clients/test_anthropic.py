"""Anthropic's client."""

from __future__ import annotations

import pytest
from anthropic import Anthropic
from people import ASK_WEATHER, GREETING, MODEL, NAME, RESULT, WEATHER
from recording import Recorded

TOOL = {
    "name": "weather",
    "description": "Looks the weather up.",
    "input_schema": WEATHER["function"]["parameters"],
}


@pytest.fixture(scope="module")
def client(url: str) -> Anthropic:
    return Anthropic(base_url=url, api_key="none")


def test_message_and_stream(client: Anthropic) -> None:
    messages = [{"role": "user", "content": NAME}]
    fields = {"model": MODEL, "max_tokens": 50, "messages": messages, "extra_body": {"temperature": 0}}
    reply = client.messages.create(**fields)
    assert reply.content[0].text == GREETING
    with client.messages.stream(**fields) as stream:
        assert "".join(stream.text_stream) == GREETING
    assert client.messages.count_tokens(model=MODEL, messages=messages).input_tokens == (
        reply.usage.input_tokens
        + reply.usage.cache_read_input_tokens
        + reply.usage.cache_creation_input_tokens
    )


def test_tool_call_and_its_result(recorded: Recorded) -> None:
    client = Anthropic(base_url=recorded.url, api_key="none")
    messages = [{"role": "user", "content": ASK_WEATHER}]
    fields = {"model": MODEL, "max_tokens": 100, "tools": [TOOL], "messages": messages}
    reply = client.messages.create(**fields, tool_choice={"type": "tool", "name": "weather"})
    (call,) = [block for block in reply.content if block.type == "tool_use"]
    assert call.input == {"city": "Rome"} and reply.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
    answer = client.messages.create(**fields, tool_choice={"type": "none"})
    assert recorded.tool_results == [RESULT]
    assert answer.usage.output_tokens > 0
    assert answer.stop_reason in ("end_turn", "max_tokens")
