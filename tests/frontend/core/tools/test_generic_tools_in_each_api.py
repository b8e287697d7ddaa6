"""Each API serves tools with a template that prints none, and finds the turn of a call in the cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from http_world import MODEL, HttpWorld, http_world, last_generate
from tiny_model import CHATML

pytestmark = pytest.mark.asyncio(loop_scope="module")
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The sky over a town.", "parameters": PARAMETERS}
USER = {"role": "user", "content": "How is it?"}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ARGUMENTS = {"city": "Paris"}
CALLED = [{"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]
TOOL_USE = [{"type": "tool_use", "id": "a", "name": "weather", "input": ARGUMENTS}]
RESPONSES_CALL = {
    "type": "function_call",
    "call_id": "a",
    "name": "weather",
    "arguments": '{"city": "Paris"}',
}

# path, fields of both turns, the field with the conversation, what the second turn adds to it
APIS: dict[str, tuple[str, dict[str, Any], str, list[dict[str, Any]]]] = {
    "openai": (
        "/v1/chat/completions",
        {"tools": [{"type": "function", "function": FUNCTION}]},
        "messages",
        [
            {"role": "assistant", "tool_calls": CALLED},
            {"role": "tool", "tool_call_id": "a", "content": "Sun."},
        ],
    ),
    "responses": (
        "/v1/responses",
        {"tools": [{"type": "function", **FUNCTION}]},
        "input",
        [RESPONSES_CALL, {"type": "function_call_output", "call_id": "a", "output": "Sun."}],
    ),
    "anthropic": (
        "/v1/messages",
        {
            "tools": [{"name": "weather", "description": "The sky over a town.", "input_schema": PARAMETERS}],
            "max_tokens": 100,
        },
        "messages",
        [
            {"role": "assistant", "content": TOOL_USE},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "Sun."}]},
        ],
    ),
    "ollama": (
        "/api/chat",
        {"tools": [{"type": "function", "function": FUNCTION}], "stream": False},
        "messages",
        [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "weather", "arguments": ARGUMENTS}}],
            },
            {"role": "tool", "tool_name": "weather", "content": "Sun."},
        ],
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(CHATML, context_length=2048) as world:
        yield world


async def prompt_after(world: HttpWorld, path: str, **body: Any) -> bytes:
    answer = await world.http.post(path, json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    return last_generate(world).prompt


@pytest.mark.parametrize("api", APIS)
async def test_the_model_sees_the_tools_and_the_next_turn_begins_with_its_call(
    world: HttpWorld, api: str
) -> None:
    path, fields, conversation, turn = APIS[api]
    world.script = world.says(CALL)
    first = await prompt_after(world, path, **fields, **{conversation: [USER]})
    assert "The sky over a town." in world.tokenizer.decode(first, skip_special_tokens=False)
    world.script = world.says("Fine.")
    second = await prompt_after(world, path, **fields, **{conversation: [USER, *turn]})
    text = world.tokenizer.decode(second, skip_special_tokens=False)
    assert second.startswith(first + world.tokenizer.encode(CALL + "<|im_end|>", add_special_tokens=False))
    assert "<|im_start|>user\n<tool_response>\nSun.\n</tool_response><|im_end|>" in text


async def test_a_call_is_required_of_a_model_that_sees_the_tools(world: HttpWorld) -> None:
    world.script = world.says(CALL)
    fields = {**APIS["openai"][1], "messages": [USER], "tool_choice": "required"}
    answer = await world.http.post("/v1/chat/completions", json={"model": MODEL, **fields})
    (choice,) = answer.json()["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'
    request = last_generate(world)
    assert request.grammar is not None and "<tool_call>" in request.grammar.text
    assert "weather" in world.tokenizer.decode(request.prompt, skip_special_tokens=False)


@pytest.mark.parametrize(("template", "takes_tools"), [(CHATML, True), (None, False)])
async def test_ollamas_capabilities_are_those_that_its_chats_serve(
    template: str | None, takes_tools: bool
) -> None:
    path, fields, conversation, _ = APIS["ollama"]
    async with http_world(template, context_length=2048) as world:
        shown = await world.http.post("/api/show", json={"model": MODEL})
        answer = await world.http.post(path, json={"model": MODEL, **fields, conversation: [USER]})
    assert ("tools" in shown.json()["capabilities"]) == takes_tools == (answer.status_code == 200)
