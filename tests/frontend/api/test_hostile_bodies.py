"""Whatever JSON a client sends, it gets an answer or an error that names a field, never a failure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import anthropic_world
import ollama_world
import pytest
import pytest_asyncio
from arbora.frontend.api.anthropic.protocol import MessagesRequest
from arbora.frontend.api.ollama.protocol import ChatRequest, GenerateRequest
from cache_answers import well
from http_world import HttpWorld, http_world
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = anthropic_world.HELLO
BLOCKS: Any = [
    {"type": "text", "text": "Hello"},
    {"type": "thinking", "thinking": "Hm.", "signature": ""},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}},
    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Sun."}]},
    {"type": "image", "source": {}},
]
CALLS: Any = [{"function": {"name": "weather", "arguments": {"city": "Paris"}}}]


class Api(NamedTuple):
    """`valid` has all that the API's bodies may have; `least` is enough."""

    paths: tuple[str, ...]
    valid: Any
    least: Any
    fields: list[str]


ANTHROPIC = Api(
    ("/v1/messages", "/v1/messages/count_tokens"),
    {
        "messages": HELLO,
        "max_tokens": 5,
        "system": [BLOCKS[0]],
        "tools": anthropic_world.TOOLS,
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        "metadata": {"user_id": "a"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "stop_sequences": ["x"],
    },
    {"messages": HELLO, "max_tokens": 5},
    [*MessagesRequest.__struct_fields__],
)
OLLAMA = Api(
    ("/api/chat", "/api/generate", "/api/show"),
    {
        "messages": [
            *HELLO,
            {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": CALLS},
            {"role": "tool", "tool_name": "weather", "content": "Sun."},
        ],
        "prompt": "Hello",
        "system": "Be brief.",
        "raw": False,
        "tools": ollama_world.TOOLS,
        "format": {"type": "object"},
        "think": "low",
        "keep_alive": "5m",
        "options": {"num_predict": 5, "num_ctx": 1000, "stop": ["x"], "temperature": 0.5, "mirostat": 0},
        "logprobs": True,
        "top_logprobs": 1,
    },
    {"messages": HELLO, "prompt": "Hello"},
    [*ChatRequest.__struct_fields__, *GenerateRequest.__struct_fields__],
)
EACH = pytest.mark.parametrize("api", [ANTHROPIC, OLLAMA], ids=["anthropic", "ollama"])
WORDS = ["user", "assistant", "tool", "text", "tool_use", "auto", "enabled", "json_schema"]
WORDS += ["json", "low", "5m", "stop"]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system"]),
            "content": st.lists(st.sampled_from(BLOCKS), max_size=4) | st.just("Hello"),
        }
    ),
    max_size=5,
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(anthropic_world.TEMPLATE, context_length=2048) as world:
        world.script = world.says("Fine.")
        world.running.cache = well
        yield world


async def check(world: HttpWorld, api: Api, body: Any) -> None:
    for path in api.paths:
        answer = await world.http.post(path, content=json.dumps(body))
        assert answer.status_code in (200, 400, 404), answer.text
        if answer.status_code != 200:
            error = answer.json()
            assert error["type"] == "error" if api is ANTHROPIC else isinstance(error["error"], str)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [each for key, inner in pairs for each in paths(inner, (*path, key))]


@EACH
@settings(max_examples=60)
@given(data=st.data())
async def test_a_wrong_value_anywhere_is_refused_or_served(world: HttpWorld, api: Api, data: Any) -> None:
    body: Any = json.loads(json.dumps(api.valid))
    *above, last = data.draw(st.sampled_from(paths(api.valid)))
    inner = body
    for key in above:
        inner = inner[key]
    inner[last] = data.draw(JSON)
    await check(world, api, body)


@EACH
@settings(max_examples=60)
@given(data=st.data())
async def test_fields_of_any_type_are_refused_or_served(world: HttpWorld, api: Api, data: Any) -> None:
    fields = data.draw(st.dictionaries(st.sampled_from(api.fields), JSON, max_size=3))
    await check(world, api, {**api.least, **fields})


@settings(max_examples=60)
@given(turns=TURNS)
async def test_turns_in_any_order_are_refused_or_served(world: HttpWorld, turns: Any) -> None:
    await check(world, ANTHROPIC, {"messages": turns, "max_tokens": 5, "tools": anthropic_world.TOOLS})
