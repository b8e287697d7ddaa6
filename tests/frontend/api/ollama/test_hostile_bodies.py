"""Whatever JSON a client sends, it gets an answer or an error that names a field, never a failure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.api.ollama.protocol import ChatRequest, GenerateRequest
from hypothesis import given, settings
from hypothesis import strategies as st
from json_paths import paths
from ollama_world import HELLO, TOOLS, OllamaWorld, ollama_world

pytestmark = pytest.mark.asyncio(loop_scope="module")
CALLS: Any = [{"function": {"name": "weather", "arguments": {"city": "Paris"}}}]
VALID: Any = {
    "messages": [
        *HELLO,
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": CALLS},
        {"role": "tool", "tool_name": "weather", "content": "Sun."},
    ],
    "prompt": "Hello",
    "system": "Be brief.",
    "raw": False,
    "tools": TOOLS,
    "format": {"type": "object"},
    "think": "low",
    "keep_alive": "5m",
    "options": {"num_predict": 5, "num_ctx": 1000, "stop": ["x"], "temperature": 0.5, "mirostat": 0},
    "logprobs": True,
    "top_logprobs": 1,
}
SMALL = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["user", "assistant", "tool", "json", "low", "5m", "stop"])
)
JSON = st.recursive(
    SMALL,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*ChatRequest.__struct_fields__, *GenerateRequest.__struct_fields__])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[OllamaWorld]:
    async with ollama_world() as world:
        world.says("Fine.")
        yield world


async def check(world: OllamaWorld, body: Any) -> None:
    for path in ("/api/chat", "/api/generate", "/api/show"):
        answer = await world.http_world.http.post(path, content=json.dumps(body))
        assert answer.status_code in (200, 400, 404), answer.text
        assert answer.status_code == 200 or isinstance(answer.json()["error"], str)


@settings(max_examples=60)
@given(st.data())
async def test_a_wrong_value_anywhere_is_refused_or_served(world: OllamaWorld, data: Any) -> None:
    body: Any = json.loads(json.dumps(VALID))
    *above, last = data.draw(st.sampled_from(paths(VALID)))
    inner = body
    for key in above:
        inner = inner[key]
    inner[last] = data.draw(JSON)
    await check(world, body)


@settings(max_examples=60)
@given(fields=st.dictionaries(NAMES, JSON, max_size=3))
async def test_fields_of_any_type_are_refused_or_served(world: OllamaWorld, fields: Any) -> None:
    await check(world, {"messages": HELLO, "prompt": "Hello", **fields})
