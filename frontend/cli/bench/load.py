"""Loads a server with generated chats: a fixed number of streams, or arrivals at a fixed rate."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable

import httpx
import msgspec

from ....runtime.errors import ConfigError
from .client import Client, Reply
from .figures import Figures, figures
from .texts import Texts

OnReply = Callable[[], object]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A closed loop keeps `streams` requests open. An open loop sends `rate` requests a second at random
    times, however many are open."""

    requests: int
    streams: int
    rate: float | None
    """requests per second of an open loop; None for a closed loop"""
    prompt_tokens: int
    output_tokens: int
    shared: float
    """the share of each prompt that all prompts have in common, at their beginning, from 0 to 1"""
    seed: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    load: Load
    seconds: float
    figures: Figures
    error: str | None
    """the first error of a request"""


async def measure(url: str, api_key: str | None, load: Load, on_reply: OnReply) -> Measured:
    """Measures a server under load. Raises ConfigError if neither server nor tokenizer answers."""
    client = Client(url, api_key)
    try:
        await client.open()
        _check_context(client, load)
        prompts = await _prompts(client, load)
        begun = time.perf_counter()
        send = _closed_loop if load.rate is None else _open_loop
        replies = await send(client, prompts, load, on_reply)
        seconds = time.perf_counter() - begun
    finally:
        await client.close()
    return Measured(
        model=client.model,
        load=load,
        seconds=round(seconds, 3),
        figures=figures(replies, seconds),
        error=next((reply.error for reply in replies if reply.error), None),
    )


def _check_context(client: Client, load: Load) -> None:
    """Raises ConfigError for prompts and replies that exceed the model's context."""
    asked = load.prompt_tokens + load.output_tokens
    if client.context is not None and asked > client.context:
        raise ConfigError(
            f"--prompt-tokens {load.prompt_tokens} and --output-tokens {load.output_tokens}: the context of "
            f"{client.model} has {client.context:,} tokens, {asked - client.context:,} fewer. Lower one."
        )


async def _prompts(client: Client, load: Load) -> list[str]:
    texts = Texts(f"bench {load.seed}")
    try:
        await texts.calibrate(client)
        wanted = max(1, load.prompt_tokens - await client.template_tokens())
    except (httpx.HTTPError, LookupError, ValueError) as error:
        raise ConfigError(
            f"--prompt-tokens {load.prompt_tokens}: the server does not count tokens at /tokenize ({error})."
        ) from None
    shared = round(wanted * load.shared)
    beginning = texts.text(shared) + " " if shared else ""
    own = wanted - shared
    return [beginning + (texts.text(own) if own else "") for _ in range(load.requests)]


async def _ask(client: Client, prompt: str, load: Load, on_reply: OnReply) -> Reply:
    message = {"role": "user", "content": prompt}
    reply = await client.chat([message], max_tokens=load.output_tokens, temperature=0, ignore_eos=True)
    on_reply()
    return reply


async def _closed_loop(client: Client, prompts: list[str], load: Load, on_reply: OnReply) -> list[Reply]:
    left, replies = iter(prompts), list[Reply]()

    async def stream() -> None:
        for prompt in left:
            replies.append(await _ask(client, prompt, load, on_reply))

    await asyncio.gather(*(stream() for _ in range(load.streams)))
    return replies


async def _open_loop(client: Client, prompts: list[str], load: Load, on_reply: OnReply) -> list[Reply]:
    """Sends requests at exponentially distributed intervals, as independent users do."""
    assert load.rate is not None
    clock = random.Random(f"arrivals {load.seed}")
    arrivals = itertools.accumulate(clock.expovariate(load.rate) for _ in prompts)
    begun = time.perf_counter()
    asked = []
    for prompt, arrival in zip(prompts, arrivals, strict=True):
        await asyncio.sleep(begun + arrival - time.perf_counter())
        asked.append(asyncio.create_task(_ask(client, prompt, load, on_reply)))
    return list(await asyncio.gather(*asked))
