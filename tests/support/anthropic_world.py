"""A server with a scripted scheduler, and Anthropic's client of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anthropic
import httpx
from http_world import MODEL, ClientWorld, HttpWorld, http_world

HELLO: Any = [{"role": "user", "content": "How is the weather?"}]
TOOLS: Any = [
    {
        "name": "weather",
        "description": "Looks it up.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
    {"name": "clock", "input_schema": {"type": "object", "properties": {}}},
]
# As Qwen3 does in a loop of tools: Hermes' calls, and a prompt that keeps the reasoning of earlier turns.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Answer with <tool_call>{...}</tool_call>.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def called(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def turn_of(message: Any) -> Any:
    """A reply as a message of the next request."""
    return {"role": "assistant", "content": [block.to_dict() for block in message.content]}


class AnthropicWorld(ClientWorld):
    """`client` is Anthropic's own."""

    def __init__(self, world: HttpWorld, key: str) -> None:
        super().__init__(world)
        self.client = anthropic.AsyncAnthropic(base_url=world.url, api_key=key, max_retries=0)

    async def create(self, **fields: Any) -> Any:
        fields = {"model": MODEL, "messages": HELLO, "max_tokens": 1000, **fields}
        return await self.client.messages.create(**fields)

    async def post(self, path: str = "/v1/messages", **body: Any) -> httpx.Response:
        return await self.http_world.http.post(path, json=body)


@contextlib.asynccontextmanager
async def anthropic_world(
    template: str = TEMPLATE, api_keys: Sequence[str] = (), **more: Any
) -> AsyncIterator[AnthropicWorld]:
    async with http_world(template, api_keys, context_length=2048, **more) as world:
        found = AnthropicWorld(world, api_keys[0] if api_keys else "none")
        try:
            yield found
        finally:
            await found.client.close()
