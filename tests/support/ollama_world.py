"""A server with a scripted scheduler, and Ollama's client of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import ollama
from anthropic_world import TEMPLATE, called
from http_world import MODEL, ClientWorld, HttpWorld, http_world

__all__ = ["HELLO", "TEMPLATE", "TOOLS", "OllamaWorld", "called", "ollama_world"]
HELLO: Any = [{"role": "user", "content": "How is the weather?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Looks it up.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]


class OllamaWorld(ClientWorld):
    """`client` is Ollama's own."""

    def __init__(self, world: HttpWorld, key: str | None) -> None:
        super().__init__(world)
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self.client = ollama.AsyncClient(host=world.url, headers=headers)

    async def chat(self, **fields: Any) -> Any:
        fields = {"model": MODEL, "messages": HELLO, **fields}
        return await self.client.chat(**fields)

    async def generate(self, **fields: Any) -> Any:
        return await self.client.generate(**{"model": MODEL, "prompt": "How is the weather?", **fields})

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http_world.http.post(path, json=body)


@contextlib.asynccontextmanager
async def ollama_world(
    template: str | None = TEMPLATE, api_keys: Sequence[str] = (), **more: Any
) -> AsyncIterator[OllamaWorld]:
    async with http_world(template, api_keys, context_length=2048, **more) as world:
        found = OllamaWorld(world, api_keys[0] if api_keys else None)
        try:
            yield found
        finally:
            await found.client._client.aclose()
