"""Many requests at once, and clients that disconnect, at a server with all its processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import openai
import pytest
import pytest_asyncio
from arbora.runtime.scheduler.budget import MAX_CHUNK
from served import HELLO, Served, eventually, serve

STREAMS = 64
ENDLESS = 10_000
FOLLOWED: Any = {
    "model": "tiny",
    "max_tokens": ENDLESS,
    "stream": True,
    "extra_body": {
        "ignore_eos": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 30}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def roomy(roomy_model: Path) -> Iterator[Served]:
    """A server with prompts many times as long as a step's budget."""
    with serve(roomy_model, "--kv-memory", "24MiB") as server:
        yield server


@pytest_asyncio.fixture
async def roomy_client(roomy: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with roomy.async_client() as client:
        yield client


@pytest_asyncio.fixture
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with served.async_client() as client:
        yield client


def asked(number: int) -> dict[str, Any]:
    """Requests of every kind, which their numbers distinguish."""
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 16, "extra_body": {"ignore_eos": True}}
    match number % 4:
        case 1:
            fields |= {"temperature": 1, "seed": number}
        case 2:
            fields |= {"extra_body": {"regex": "[a-z]{6,9}[0-9]"}, "seed": number, "temperature": 1}
        case 3:
            fields |= {"extra_body": {"guided_json": SCHEMA}, "max_tokens": 60, "seed": number}
    question = f"the cat number {number} sat on " + "the mat and " * (number % 7)
    return fields | {"messages": [{"role": "user", "content": question}]}


@pytest.fixture(scope="module")
def small(served_model: Path) -> Iterator[Served]:
    """A server whose pages hold a few requests only."""
    with serve(served_model, "--kv-memory", "256KiB") as server:
        yield server


async def test_retracted_requests_are_answered_as_if_alone(small: Served) -> None:
    async def reply(number: int) -> Any:
        sampling: Any = {"temperature": 1, "seed": number, "frequency_penalty": 0.4, "max_tokens": 150}
        extra: Any = {"regex": "([a-z]{2,5} ){40,50}"} if number % 2 else {"ignore_eos": True}
        completion = await asking.completions.create(
            model=small.model, prompt=f"{number % 5} sat on a log", extra_body=extra, **sampling
        )
        return completion.choices[0].text

    async with small.async_client() as asking:
        together = await asyncio.gather(*(reply(number) for number in range(16)))
        assert small.metrics()["arbora_retractions_total"] > 0
        assert together == [await reply(number) for number in range(16)]
    eventually(lambda: small.is_quiet)


async def stream_text(client: openai.AsyncOpenAI, number: int) -> str:
    stream = await client.chat.completions.create(model="tiny", stream=True, **asked(number))
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def test_many_streams_at_once_give_the_texts_of_each_alone(
    served: Served, client: openai.AsyncOpenAI
) -> None:
    together = await asyncio.gather(*(stream_text(client, number) for number in range(STREAMS)))
    await asyncio.to_thread(eventually, lambda: served.is_quiet)
    alone = [await stream_text(client, number) for number in range(STREAMS)]
    assert together == alone
    for number, text in enumerate(together):
        if number % 4 == 2:
            assert re.fullmatch("[a-z]{6,9}[0-9]", text)
        if number % 4 == 3:
            assert json.loads(text)["kind"] in ("cat", "dog")


def tokens_so_far(chunk: openai.types.Completion) -> int:
    assert chunk.usage is not None
    return chunk.usage.completion_tokens


async def test_a_client_that_goes_away_leaves_nothing_running(
    roomy: Served, roomy_client: openai.AsyncOpenAI
) -> None:
    endless: Any = {
        "model": "tiny",
        "messages": HELLO,
        "max_tokens": ENDLESS,
        "extra_body": {"ignore_eos": True},
    }
    stream = await roomy_client.chat.completions.create(stream=True, **endless)
    await anext(stream)
    whole = asyncio.create_task(roomy_client.chat.completions.create(**endless))
    several = asyncio.create_task(roomy_client.chat.completions.create(n=4, **endless))
    await asyncio.to_thread(eventually, lambda: roomy.running == 6)
    await stream.close()
    for task in (whole, several):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await asyncio.to_thread(eventually, lambda: roomy.is_quiet)


async def test_a_stream_continues_while_a_grammar_is_compiled(
    roomy: Served, roomy_client: openai.AsyncOpenAI
) -> None:
    stream = await roomy_client.completions.create(prompt="Once", **FOLLOWED)
    before = tokens_so_far(await anext(stream))
    never_seen = {"regex": f"(([a-z]{{1,40}}[0-9]{{1,40}}){{1,12}}[A-Z]{{0,60}}){{1,2}}({uuid4().hex})?"}
    asking = asyncio.create_task(
        roomy_client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=5, seed=1, extra_body=never_seen
        )
    )
    while not asking.done():
        during = tokens_so_far(await anext(stream))
    assert re.match("[a-z][a-z0-9A-Z]*", (await asking).choices[0].message.content or "")
    assert during >= before + 5
    await stream.close()


async def test_a_stream_continues_during_the_prefill_of_a_long_prompt(
    roomy: Served, roomy_client: openai.AsyncOpenAI
) -> None:
    stream = await roomy_client.completions.create(prompt="Once", **FOLLOWED)
    before = during = tokens_so_far(await anext(stream))
    document = roomy.token_ids("a dog and a log, a fox and a box: ")
    document *= 1 + 6 * MAX_CHUNK // len(document)
    reading = asyncio.create_task(
        roomy_client.completions.create(model=roomy.model, prompt=document, max_tokens=1)
    )
    while not reading.done():
        during = tokens_so_far(await anext(stream))
    assert during >= before + 4
    usage = (await reading).usage
    assert usage is not None
    assert usage.prompt_tokens > 6 * MAX_CHUNK
    await stream.close()
