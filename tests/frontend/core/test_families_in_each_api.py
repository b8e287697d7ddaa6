"""Each API gives the reasoning and calls of each family, and the next turn finds them in the cache."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.runtime.messages import GrammarSpec
from fake_scheduler import packed, unpacked
from family_templates import FAMILY_TEMPLATES, TOOLS, render_calls
from http_world import MODEL, HttpWorld, http_world, last_generate, last_prompt

pytestmark = pytest.mark.asyncio(loop_scope="module")
FAMILIES = ("harmony", "qwen_xml", "gemma", "kimi", "dsml")
USER = {"role": "user", "content": "Hello"}
ARGUMENTS = {"note": "a b", "unit": "C"}
FUNCTIONS = [tool["function"] for tool in TOOLS]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=FAMILIES)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[HttpWorld]:
    known = FAMILY_TEMPLATES[request.param]
    special = (*known.special, "<|eot|>")
    async with http_world(known.source, context_length=4096, special=special) as world:
        world.script = world.says(reply(request.param))
        yield world


def reply(family: str) -> str:
    return render_calls(family, ("find", ARGUMENTS), reasoning_content="Hm.")


async def post(world: HttpWorld, path: str, **fields: Any) -> Any:
    answer = await world.http.post(path, json={"model": MODEL, "stream": False, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def from_chat(world: HttpWorld, **fields: Any) -> tuple[str, str, Any, Any]:
    answer = await post(world, "/v1/chat/completions", messages=[USER], tools=TOOLS, **fields)
    message = answer["choices"][0]["message"]
    call = message["tool_calls"][0]["function"]
    return message["reasoning_content"], call["name"], json.loads(call["arguments"]), message


async def from_responses(world: HttpWorld) -> tuple[str, str, Any]:
    tools = [{"type": "function", **function} for function in FUNCTIONS]
    answer = await post(world, "/v1/responses", input=[USER], tools=tools)
    reasoning, call = answer["output"]
    return reasoning["content"][0]["text"], call["name"], json.loads(call["arguments"])


async def from_anthropic(world: HttpWorld) -> tuple[str, str, Any]:
    tools = [{"name": each["name"], "input_schema": each["parameters"]} for each in FUNCTIONS]
    answer = await post(world, "/v1/messages", messages=[USER], tools=tools, max_tokens=500)
    thinking, call = answer["content"]
    return thinking["thinking"], call["name"], call["input"]


async def from_ollama(world: HttpWorld) -> tuple[str, str, Any]:
    message = (await post(world, "/api/chat", messages=[USER], tools=TOOLS, think=True))["message"]
    call = message["tool_calls"][0]["function"]
    return message["thinking"], call["name"], call["arguments"]


async def test_each_api_has_the_reasoning_and_the_call(world: HttpWorld) -> None:
    expected = ("Hm.", "find", ARGUMENTS)
    assert (await from_chat(world))[:3] == expected
    assert await from_responses(world) == expected
    assert await from_anthropic(world) == expected
    assert await from_ollama(world) == expected


async def test_the_turn_after_a_call_begins_with_all_tokens_of_the_call(world: HttpWorld) -> None:
    *_, message = await from_chat(world)
    request = last_generate(world)
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Done."}
    await post(world, "/v1/chat/completions", messages=[USER, message, result], tools=TOOLS)
    spoken = packed(world.script(request)[:-1])  # without the end
    assert last_prompt(world).startswith(world.text(unpacked(request.prompt + spoken)))
    assert last_generate(world).prompt.startswith(request.prompt + spoken)


async def test_a_required_call_is_constrained_after_reasoning(world: HttpWorld) -> None:
    await from_chat(world, tool_choice="required")
    grammar = last_generate(world).grammar
    assert isinstance(grammar, GrammarSpec) and json.loads(grammar.text)["type"] == "thinking"
    assert "Hello" in last_prompt(world)
