"""No request opens a file or imports a module, which would fail in a process without free descriptors."""

from __future__ import annotations

import sys
from typing import Any

from http_world import http_world

CHAT: Any = {"messages": [{"role": "user", "content": "Hello"}]}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "stream": True}),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/chat/completions", {**CHAT, "response_format": SCHEMA}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"messages": CHAT["messages"] * 3000}),
    ("/v1/completions", {"prompt": "Hello", "logprobs": 2}),
    ("/v1/completions", {"prompt": "a", "regex": "a+"}),
    ("/v1/completions", {"prompt": "x" * 100_000}),
    ("/tokenize", CHAT),
    ("/detokenize", {"tokens": [1, 2]}),
    ("/nowhere", {}),
]
PATHS = ("/v1/models", "/metrics", "/version", "/nowhere")
recorded: list[tuple[str, object]] | None = None


def record(event: str, arguments: tuple[Any, ...]) -> None:
    if recorded is not None and event in ("open", "import"):
        recorded.append((event, arguments[0]))


async def test_no_request_opens_a_file_or_imports() -> None:
    global recorded
    sys.addaudithook(record)
    async with http_world() as world:
        await world.http.get("/version")  # the client may
        recorded = []
        try:
            for path, body in REQUESTS:
                await world.http.post(path, json=body)
            for path in PATHS:
                await world.http.get(path)
            assert recorded == []
        finally:
            recorded = None
