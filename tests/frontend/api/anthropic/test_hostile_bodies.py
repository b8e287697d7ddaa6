"""Whatever JSON a client sends, it gets an answer or an error that names a field, never a failure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from anthropic_world import HELLO, TOOLS, AnthropicWorld, anthropic_world
from arbora.frontend.api.anthropic.protocol import MessagesRequest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_paths import paths

pytestmark = pytest.mark.asyncio(loop_scope="module")
BLOCKS: Any = [
    {"type": "text", "text": "Hello"},
    {"type": "thinking", "thinking": "Hm.", "signature": ""},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}},
    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Sun."}]},
    {"type": "image", "source": {}},
]
VALID: Any = {
    "messages": HELLO,
    "max_tokens": 5,
    "system": [BLOCKS[0]],
    "tools": TOOLS,
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "metadata": {"user_id": "a"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "stop_sequences": ["x"],
}
SMALL = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["user", "assistant", "text", "tool_use", "auto", "enabled", "json_schema", "stop"])
)
JSON = st.recursive(
    SMALL,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(MessagesRequest.__struct_fields__)
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
async def world() -> AsyncIterator[AnthropicWorld]:
    async with anthropic_world() as world:
        world.says("Fine.")
        yield world


async def check(world: AnthropicWorld, body: Any) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = await world.http_world.http.post(path, content=json.dumps(body))
        assert answer.status_code in (200, 400, 404), answer.text
        assert answer.status_code == 200 or answer.json()["type"] == "error"


@settings(max_examples=60)
@given(st.data())
async def test_a_wrong_value_anywhere_is_refused_or_served(world: AnthropicWorld, data: Any) -> None:
    body: Any = json.loads(json.dumps(VALID))
    *above, last = data.draw(st.sampled_from(paths(VALID)))
    inner = body
    for key in above:
        inner = inner[key]
    inner[last] = data.draw(JSON)
    await check(world, body)


@settings(max_examples=60)
@given(fields=st.dictionaries(NAMES, JSON, max_size=3))
async def test_fields_of_any_type_are_refused_or_served(world: AnthropicWorld, fields: Any) -> None:
    await check(world, {"messages": HELLO, "max_tokens": 5, **fields})


@settings(max_examples=60)
@given(turns=TURNS)
async def test_turns_in_any_order_are_refused_or_served(world: AnthropicWorld, turns: Any) -> None:
    await check(world, {"messages": turns, "max_tokens": 5, "tools": TOOLS})
