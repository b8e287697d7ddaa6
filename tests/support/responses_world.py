"""A server with a scripted scheduler that stores responses, and OpenAI's client of it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
from anthropic_world import TEMPLATE, called
from http_world import MODEL, ClientWorld, HttpWorld, http_world

__all__ = ["ResponsesWorld", "called", "events_of", "responses_world"]

CONTEXT = 4096


class ResponsesWorld(ClientWorld):
    """`client` is OpenAI's own, with the first API key."""

    def __init__(self, world: HttpWorld, key: str) -> None:
        super().__init__(world)
        self.key = key
        self.client: openai.AsyncOpenAI = world.client.with_options(api_key=key)

    async def create(self, **fields: Any) -> Any:
        return await self.client.responses.create(**{"model": MODEL, "input": "Hello", **fields})

    async def events(self, **fields: Any) -> list[Any]:
        return [event async for event in await self.create(stream=True, **fields)]

    async def request(self, method: str, path: str, key: str | None = None, **fields: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key or self.key}"}
        return await self.http_world.http.request(method, path, headers=headers, **fields)

    async def post(self, **body: Any) -> httpx.Response:
        return await self.request("POST", "/v1/responses", json={"input": "Hello", **body})


@contextlib.asynccontextmanager
async def responses_world(
    template: str = TEMPLATE,
    api_keys: Sequence[str] = (),
    data_dir: Path | None = None,
    stores: bool = True,
    **more: Any,
) -> AsyncIterator[ResponsesWorld]:
    """`data_dir` is a new directory by default; without `stores` there is none."""
    with tempfile.TemporaryDirectory(prefix="arb") as name:
        directory = (data_dir or Path(name)) if stores else None
        async with http_world(
            template, api_keys, context_length=CONTEXT, data_dir=directory, **more
        ) as world:
            yield ResponsesWorld(world, api_keys[0] if api_keys else "none")


def events_of(text: str) -> list[str]:
    """The names of the events in a stream."""
    return [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
