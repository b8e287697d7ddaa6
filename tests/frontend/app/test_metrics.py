"""The metrics of the HTTP server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from http_world import HELLO, MODEL, HttpWorld, http_world
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world() as world:
        yield world


async def samples(world: HttpWorld) -> dict[str, float]:
    text = (await world.http.get("/metrics")).text
    families = text_string_to_metric_families(text)
    return {
        sample.name: sample.value for family in families for sample in family.samples if not sample.labels
    }


async def test_metrics_count_requests_and_tokens(world: HttpWorld) -> None:
    world.script = world.says("the cat sat")
    before = await samples(world)
    completion = await world.client.chat.completions.create(model=MODEL, messages=HELLO)
    after = await samples(world)

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert completion.usage is not None
    assert grown("arbora_request_prompt_tokens_total") == completion.usage.prompt_tokens
    assert grown("arbora_request_completion_tokens_total") == completion.usage.completion_tokens
    assert grown("arbora_time_to_first_token_seconds_count") == 1
    assert grown("arbora_inter_token_latency_seconds_count") == completion.usage.completion_tokens - 1
    assert grown("arbora_request_duration_seconds_count") == 1


async def test_metrics_count_the_tokens_that_earlier_turns_saved_and_lost(world: HttpWorld) -> None:
    world.script = world.says("the cat sat")
    first = await world.client.chat.completions.create(model=MODEL, messages=HELLO)
    before = await samples(world)
    counters = ("arbora_prompt_tokens_remembered_total", "arbora_prompt_tokens_rewritten_total")
    saved: list[float] = []
    lost: list[float] = []
    for reply in ("the cat sat", "the dog sat on the mat"):
        said: Any = {"role": "assistant", "content": reply}
        body = {"messages": [*HELLO, said, {"role": "user", "content": "And?"}]}
        await world.http.post("/tokenize", json=body)
        after = await samples(world)
        saved.append(after[counters[0]] - before[counters[0]])
        lost.append(after[counters[1]] - before[counters[1]])
        before = after
    assert first.usage is not None
    assert saved[0] == first.usage.total_tokens - 1
    assert saved[1] < first.usage.prompt_tokens
    assert lost[0] == 0
    assert lost[1] >= len(world.ids("cat sat"))
    assert after["arbora_prompt_memo_bytes"] > 0


async def test_the_metrics_texts_say_requests(world: HttpWorld) -> None:
    text = (await world.http.get("/metrics")).text
    assert "# HELP arbora_requests_running Requests that take part in steps." in text
    assert "equence" not in text


async def test_metrics_have_the_schedulers_pages_and_queues(world: HttpWorld) -> None:
    found = await samples(world)
    assert found["arbora_kv_pages"] == 64
    assert found["arbora_kv_pages_used"] == 2
    assert found["arbora_kv_pages_cached"] == 3
    assert found["arbora_kv_pages_free"] == 59
    assert found["arbora_requests_running"] == 0
    assert found["arbora_requests_waiting"] == 0
    looked_up = found["arbora_prompt_tokens_looked_up_total"]
    assert looked_up == 3 * found["arbora_prompt_tokens_cached_total"] > 0


async def test_counters_continue_when_the_replica_starts_again(world: HttpWorld) -> None:
    before = await samples(world)
    await world.kill_replica()
    while_down = await samples(world)
    await world.start_replica()
    after = await samples(world)
    name = "arbora_prompt_tokens_cached_total"
    assert before[name] == while_down[name]
    assert after[name] == before[name] + 10
