"""A server with a scripted scheduler that runs batches quickly, and OpenAI's client of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import openai
from arbora.frontend.api.anthropic.routes import ANTHROPIC
from arbora.frontend.api.openai.routes import OPENAI
from arbora.frontend.http.apis import Apis
from arbora.frontend.stored.batches.batch_runner import Pace
from arbora.frontend.stored.batches.routes import batches_api
from arbora.frontend.stored.responses.routes import RESPONSES
from http_world import MODEL, HttpWorld, http_world

CHATS = "/v1/chat/completions"
PACE = Pace(poll=0.02, retry=0.1, sweep=0.2)
ENDED = ("completed", "failed", "expired", "cancelled")


def chat(custom_id: str, text: str = "Hello", **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 50, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": CHATS, "body": body}


def jsonl(*lines: Any) -> bytes:
    """A text is a line as it is, any other value becomes JSON."""
    return b"".join(f"{line if isinstance(line, str) else json.dumps(line)}\n".encode() for line in lines)


class BatchWorld:
    def __init__(self, world: HttpWorld, data: Path) -> None:
        self.world = world
        self.data = data
        self.client = world.client

    def with_key(self, key: str) -> openai.AsyncOpenAI:
        client: openai.AsyncOpenAI = self.client.with_options(api_key=key)
        return client

    async def upload(self, *lines: Any, **more: Any) -> Any:
        return await self.client.files.create(file=("in.jsonl", jsonl(*lines)), purpose="batch", **more)

    async def start(self, *lines: Any, endpoint: Any = CHATS, **more: Any) -> Any:
        file = await self.upload(*lines)
        fields = {"completion_window": "24h", **more}
        return await self.client.batches.create(input_file_id=file.id, endpoint=endpoint, **fields)

    async def ended(self, batch: Any) -> Any:
        return await self.until(batch, *ENDED)

    async def until(self, batch: Any, *statuses: str) -> Any:
        async with asyncio.timeout(60):
            while True:
                found = await self.client.batches.retrieve(batch.id)
                if found.status in statuses:
                    return found
                await asyncio.sleep(0.01)

    async def run(self, *lines: Any, **more: Any) -> Any:
        return await self.ended(await self.start(*lines, **more))

    async def lines(self, file: str | None) -> list[Any]:
        if file is None:
            return []
        content = await self.client.files.content(file)
        return [json.loads(line) for line in content.text.removesuffix("\n").split("\n")]


@contextlib.asynccontextmanager
async def batch_world(
    data: Path, api_keys: Sequence[str] = (), pace: Pace = PACE, **more: Any
) -> AsyncIterator[BatchWorld]:
    apis = Apis(OPENAI, (ANTHROPIC, RESPONSES, batches_api((OPENAI, ANTHROPIC, RESPONSES), pace)))
    more.setdefault("context_length", 2048)
    async with http_world(api_keys=api_keys, apis=apis, data_dir=data, **more) as world:
        found = BatchWorld(world, data)
        if api_keys:
            found.client = found.with_key(api_keys[0])
        yield found
