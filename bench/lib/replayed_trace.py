"""Replays the prompts of a trace against a server, and measures hits and times to first token."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any

import httpx
from traces import Request

BLOCK = 16
"""tokens that stand for a block of the trace"""
FIRST_ID, IDS = 300, 1500
"""Prompts have these tokens: `IDS` of them, from `FIRST_ID` on."""
MAX_REPLY = 64
REPLY_SHARE = 1 / 8
"""of the tokens of a reply in the trace"""
PATIENCE_S = 600.0


@dataclass
class Replay:
    """What the requests of a round found."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    failed: int = 0
    seconds: float = 0.0
    """from the first request to the last token"""
    first_token_s: list[float] = field(default_factory=list)


def choose_times(requests: Sequence[Request], rate: float) -> list[float]:
    """When each request comes, in seconds: at random, on average `rate` of them in a second."""
    source = random.Random(1)
    return list(accumulate(source.expovariate(rate) for _ in requests))


async def replay(url: str, requests: Sequence[Request], rate: float, max_prompt: int, salt: str) -> Replay:
    """Sends the requests in order, each at the same time in all rounds. `salt`: of this round's cache"""
    result = Replay()
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) as http,
        asyncio.TaskGroup() as tasks,
    ):
        bodies = [make_body(request, max_prompt, salt) for request in requests]
        times = choose_times(requests, rate)
        begin = time.perf_counter() - times[0]
        for at, body in zip(times, bodies, strict=True):
            await asyncio.sleep(begin + at - time.perf_counter())
            tasks.create_task(_ask(http, body, result))
    result.seconds = time.perf_counter() - begin - times[0]
    return result


def make_body(request: Request, max_prompt: int, salt: str) -> dict[str, Any]:
    prompt = [token for block in request.prompt for token in _make_block(block)][:max_prompt]
    return {
        "prompt": prompt,
        "max_tokens": min(MAX_REPLY, 1 + int(request.generated * REPLY_SHARE)),
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": salt,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@cache
def _make_block(block: int) -> list[int]:
    source = random.Random(block)
    return [FIRST_ID + source.randrange(IDS) for _ in range(BLOCK)]


async def _ask(http: httpx.AsyncClient, body: dict[str, Any], result: Replay) -> None:
    sent, first = time.perf_counter(), None
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            result.failed += 1
            return
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if first is None:
                first = time.perf_counter() - sent
                result.first_token_s.append(first)
            if usage := event.get("usage"):
                result.prompt_tokens += usage["prompt_tokens"]
                result.output_tokens += usage["completion_tokens"]
                result.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
            result.failed += "error" in event
