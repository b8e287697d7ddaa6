"""The workloads of a server's users, as generated text: equal for every server and for equal seeds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from arbora.frontend.cli.bench.client import Client, Reply
from arbora.frontend.cli.bench.texts import Texts

Messages = list[dict[str, str]]
Workload = Callable[["World"], Awaitable[list[Reply]]]


class World:
    """One run's random texts, its client, and how many requests it keeps in flight."""

    def __init__(self, client: Client, seed: str, in_flight: int) -> None:
        self.client = client
        self._texts = Texts(seed)
        self._gate = asyncio.Semaphore(in_flight)

    async def calibrate(self) -> None:
        await self._texts.calibrate(self.client)

    def text(self, tokens: int) -> str:
        return self._texts.text(tokens)

    async def ask(self, messages: Messages, **options: Any) -> Reply:
        async with self._gate:
            return await self.client.chat(messages, temperature=0, **options)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def single(world: World) -> list[Reply]:
    """One stream alone: 128 tokens out."""
    return [await world.ask([user(world.text(64))], max_tokens=128, ignore_eos=True)]


async def prefill(world: World) -> list[Reply]:
    """3 prompts of 2,000 tokens that share nothing, one after the other: 1 token out each."""
    return [await world.ask([user(world.text(2000))], max_tokens=1, ignore_eos=True) for _ in range(3)]


async def unique(world: World) -> list[Reply]:
    """12 prompts of about 420 tokens that share nothing: 48 out each."""
    prompts = [world.text(400) for _ in range(12)]
    return await asyncio.gather(
        *(world.ask([user(prompt)], max_tokens=48, ignore_eos=True) for prompt in prompts)
    )


async def chat(world: World) -> list[Reply]:
    """4 conversations of 4 turns over one system prompt of 500 tokens: 64 out each turn."""
    system = {"role": "system", "content": world.text(500)}
    questions = [[world.text(40) for _ in range(4)] for _ in range(4)]

    async def conversation(turns: list[str]) -> list[Reply]:
        messages = [system]
        replies = []
        for question in turns:
            messages.append(user(question))
            replies.append(await world.ask(messages, max_tokens=64, ignore_eos=True))
            messages.append({"role": "assistant", "content": replies[-1].text})
        return replies

    conversations = await asyncio.gather(*(conversation(turns) for turns in questions))
    return [reply for replies in conversations for reply in replies]


async def rag(world: World) -> list[Reply]:
    """6 questions to each of 3 documents of 2,000 tokens: 32 out each."""
    documents = [world.text(2000) for _ in range(3)]
    prompts = [f"{document}\n\nQuestion: {world.text(16)}" for document in documents for _ in range(6)]
    return await asyncio.gather(
        *(world.ask([user(prompt)], max_tokens=32, ignore_eos=True) for prompt in prompts)
    )


def _schemas() -> list[dict[str, Any]]:
    short = {"type": "string", "maxLength": 12}
    fields: list[dict[str, Any]] = [
        {"name": short, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
        {"city": short, "country": short, "population": {"type": "integer", "minimum": 0, "maximum": 10**8}},
        {"product": short, "in_stock": {"type": "boolean"}, "size": {"enum": ["small", "medium", "large"]}},
        {"title": short, "tags": {"type": "array", "items": short, "minItems": 2, "maxItems": 4}},
        {
            "from": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
            "to": short,
        },
        {
            "id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
            "paid": {"type": "boolean"},
            "note": short,
        },
    ]
    return [
        {"type": "object", "properties": f, "required": list(f), "additionalProperties": False}
        for f in fields
    ]


def _json_prompts(world: World) -> list[tuple[Messages, dict[str, Any]]]:
    return [([user(f"Fill in the form. {world.text(120)}")], schema) for schema in _schemas() * 4]


async def json_schema(world: World) -> list[Reply]:
    """24 requests over 6 JSON schemas: at most 64 out each."""

    def wanted(schema: dict[str, Any]) -> dict[str, Any]:
        return {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": True}}

    return await asyncio.gather(
        *(
            world.ask(messages, max_tokens=64, response_format=wanted(schema))
            for messages, schema in _json_prompts(world)
        )
    )


def replies_without_schema(lengths: list[int]) -> Workload:
    """Such prompts without a schema, and how many tokens each is answered with."""

    async def workload(world: World) -> list[Reply]:
        asked = zip(_json_prompts(world), lengths, strict=True)
        return await asyncio.gather(
            *(world.ask(messages, max_tokens=length, ignore_eos=True) for (messages, _), length in asked)
        )

    return workload


async def json_free(world: World) -> list[Reply]:
    """Such prompts without a schema: 48 out each."""
    return await replies_without_schema([48] * 24)(world)


WORKLOADS: dict[str, Workload] = {
    "single": single,
    "prefill": prefill,
    "unique": unique,
    "chat": chat,
    "rag": rag,
    "json": json_schema,
    "jsonfree": json_free,
}
