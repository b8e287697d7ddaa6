"""The same conversation in the form of each API: the same prompt, and fields of the same types."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from anthropic_world import TEMPLATE
from arbora.frontend.api.anthropic.protocol import MessagesRequest
from arbora.frontend.api.openai.protocol import ChatRequest
from arbora.frontend.stored.responses.protocol import ResponsesRequest
from http_world import HttpWorld, http_world, last_prompt
from msgspec import Struct
from msgspec.structs import fields

OF_ITS_API = {"messages", "tools", "tool_choice", "max_tokens", "metadata", "stream_options"}
"""the fields that each API has in a form of its own"""
CITY: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"name": "weather", "description": "Tells the weather.", "parameters": CITY}
PARIS = {"city": "Paris"}
ASKED = {"role": "user", "content": "Hi.\nI am Bo."}
PARTS = [{"type": "text", "text": "Hi."}, {"type": "text", "text": "I am Bo."}]
TALK: Any = [{"role": "assistant", "content": "Hello, Bo."}, {"role": "user", "content": "What is my name?"}]
SYSTEM: Any = {"role": "system", "content": "Be brief."}

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one message": {
        "/v1/chat/completions": {"messages": [ASKED]},
        "/v1/messages": {"messages": [{"role": "user", "content": PARTS}]},
        "/api/chat": {"messages": [ASKED]},
        "/api/generate": {"prompt": ASKED["content"]},
        "/generate": {"messages": [ASKED]},
        "/v1/responses": {"input": ASKED["content"]},
    },
    "a system prompt and turns": {
        "/v1/chat/completions": {"messages": [SYSTEM, {"role": "user", "content": PARTS}, *TALK]},
        "/v1/messages": {
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": PARTS}, *TALK],
        },
        "/api/chat": {"messages": [SYSTEM, ASKED, *TALK]},
        "/generate": {"messages": [SYSTEM, ASKED, *TALK]},
        "/v1/responses": {"instructions": "Be brief.", "input": [ASKED, *TALK]},
    },
    "a loop of tools": {
        "/v1/chat/completions": {
            "tools": [{"type": "function", "function": WEATHER}],
            "messages": [
                ASKED,
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "Sun."},
            ],
        },
        "/v1/messages": {
            "tools": [{**{k: v for k, v in WEATHER.items() if k != "parameters"}, "input_schema": CITY}],
            "messages": [
                ASKED,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": PARIS},
                    ],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sun."}],
                },
            ],
        },
        "/api/chat": {
            "tools": [{"type": "function", "function": WEATHER}],
            "messages": [
                ASKED,
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [{"function": {"name": "weather", "arguments": PARIS}}],
                },
                {"role": "tool", "tool_name": "weather", "content": "Sun."},
            ],
        },
        "/v1/responses": {
            "tools": [{"type": "function", **WEATHER}],
            "input": [
                ASKED,
                {"role": "assistant", "content": "I look."},
                {
                    "type": "function_call",
                    "call_id": "1",
                    "name": "weather",
                    "arguments": '{"city": "Paris"}',
                },
                {"type": "function_call_output", "call_id": "1", "output": "Sun."},
            ],
        },
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(TEMPLATE, context_length=1024) as world:
        yield world


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_the_same_conversation_has_the_same_prompt_in_each_api(world: HttpWorld, name: str) -> None:
    prompts = {}
    for path, body in CONVERSATIONS[name].items():
        limit = {"max_tokens": 9} if path == "/v1/messages" else {}
        answer = await world.http.post(path, json={**body, **limit, "stream": False})
        assert answer.status_code == 200, answer.text
        prompts[path] = last_prompt(world)
    assert prompts == dict.fromkeys(prompts, prompts["/v1/chat/completions"])


def types(body: type[Struct]) -> dict[str, object]:
    return {each.name: each.type for each in fields(body) if each.name not in OF_ITS_API}


def test_a_field_has_the_same_type_in_all_apis() -> None:
    """A msgspec struct can't inherit from two others."""
    chat, others = types(ChatRequest), (types(MessagesRequest), types(ResponsesRequest))
    for other in others:
        shared = chat.keys() & other.keys()
        assert {"min_p", "unenforced", "cache_salt", "priority", "regex"} <= shared
        assert {name: other[name] for name in shared} == {name: chat[name] for name in shared}
