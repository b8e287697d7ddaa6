"""More requests than a whole server can take: which ones it accepts, and how it refuses the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from served import PATIENCE, Served, serve

RUNNING, WAITING = 4, 24
KEYS = ("first-key", "second-key")


@pytest.fixture(scope="module")
def small(served_model: Path) -> Iterator[Served]:
    flags = ["--api-key", ",".join(KEYS), "--max-running", str(RUNNING), "--max-waiting", str(WAITING)]
    with serve(served_model, *flags, key=KEYS[0]) as server:
        yield server


async def complete(http: httpx.AsyncClient, key: str, max_tokens: int) -> httpx.Response:
    body = {"prompt": "Once", "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    return await http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})


async def test_a_key_finds_its_places_however_many_requests_another_one_sends(small: Served) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=small.url, timeout=PATIENCE, limits=limits) as http:
        flood = [asyncio.create_task(complete(http, KEYS[0], 200)) for _ in range(3 * WAITING)]
        while not any(task.done() for task in flood):  # the first answers are refusals
            await asyncio.sleep(0.01)
        others = await asyncio.gather(*(complete(http, KEYS[1], 2) for _ in range(WAITING // 2)))
        answers = [await task for task in flood]
    assert [answer.status_code for answer in others] == [200] * (WAITING // 2)
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) > WAITING
    assert all(answer.status_code == 200 for answer in answers if answer not in refused)
    for answer in refused:
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
