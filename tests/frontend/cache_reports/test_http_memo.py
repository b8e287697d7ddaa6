"""Which clients share the ids of their conversations, over HTTP with a scripted scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.cache_reports import cache_endpoints
from arbora.runtime.messages import CacheDropped, DropCache
from http_world import MODEL, HttpWorld, http_world

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(api_keys=("first", "second"), isolate_keys=True) as world:
        world.running.cache = lambda message: CacheDropped(message.query, 0, 0)
        yield world


async def asked(world: HttpWorld, question: str, key: str = "first", path: str = CHAT, **fields: Any) -> int:
    """Sends a conversation; returns how many of its prompt's ids were remembered."""
    before = await remembered(world)
    world.script = world.says("the cat sat")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
    answer = await world.http.post(
        path,
        json={"model": MODEL, "messages": messages, **fields},
        headers={"authorization": f"Bearer {key}"},
    )
    assert answer.status_code == 200, answer.text
    return await remembered(world) - before


async def remembered(world: HttpWorld) -> int:
    return int(await metric(world, "arbora_prompt_tokens_remembered_total"))


async def metric(world: HttpWorld, name: str) -> float:
    lines = (await world.http.get("/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@pytest.mark.parametrize("path", [CHAT, TOKENIZE])
async def test_a_conversation_is_known_only_to_clients_that_share_its_cache(
    world: HttpWorld, path: str
) -> None:
    question, salt = "Which cat?", f"{path} first"
    await asked(world, question, cache_salt=salt)
    assert await asked(world, question, cache_salt=salt, path=path) > 0
    assert await asked(world, question, cache_salt=f"{path} second", path=path) == 0
    assert await asked(world, question, "second", cache_salt=salt, path=path) == 0


async def test_a_request_that_opts_out_is_neither_looked_up_nor_remembered(world: HttpWorld) -> None:
    used = await metric(world, "arbora_prompt_memo_bytes")
    for _ in range(2):
        assert await asked(world, "Nobody's business", cache_prompt=False, cache_salt="none") == 0
    assert await metric(world, "arbora_prompt_memo_bytes") == used
    assert await asked(world, "Nobody's business", cache_salt="none") == 0


@pytest.mark.parametrize("query", ["", "?cache_salt=dropped"])
async def test_dropped_conversations_are_forgotten(world: HttpWorld, query: str) -> None:
    question = f"Gone {query}?"
    for key in ("first", "second"):
        await asked(world, question, key, cache_salt="dropped")
    await world.http.delete(f"/cache{query}", headers={"authorization": "Bearer first"})
    assert world.running.of_kind(DropCache)
    assert await asked(world, question, "first", cache_salt="dropped") == 0
    assert await asked(world, question, "second", cache_salt="dropped") > 0


async def test_a_drop_forgets_conversations_even_if_the_scheduler_does_not_answer(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asked(world, "Gone?", cache_salt="unanswered")
    monkeypatch.setattr(cache_endpoints, "DROP_SECONDS", 0.0)
    monkeypatch.setattr(world.running, "cache", lambda message: CacheDropped(-message.query, 0, 0))
    answer = await world.http.delete("/cache", headers={"authorization": "Bearer first"})
    assert answer.status_code == 503
    assert await asked(world, "Gone?", cache_salt="unanswered") == 0
