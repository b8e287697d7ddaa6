"""`cache_control` leases the prompt up to the end of what has it."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from anthropic_world import HELLO, TOOLS, AnthropicWorld, anthropic_world, called, turn_of
from arbora.runtime.messages import LeaseTerms
from fake_scheduler import unpacked
from http_world import last_generate

pytestmark = pytest.mark.asyncio(loop_scope="module")
EPHEMERAL = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain() -> AsyncIterator[AnthropicWorld]:
    async with anthropic_world() as world:
        yield world


@pytest.fixture
def world(plain: AnthropicWorld) -> AnthropicWorld:
    plain.says("the dog")
    plain.running.received.clear()
    return plain


def text(words: str, control: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": words, **({"cache_control": control} if control else {})}


def breakpoints(world: AnthropicWorld) -> list[LeaseTerms]:
    leases = last_generate(world.http_world).leases
    return [lease for lease in leases if lease.kind == "breakpoint"]


def leased(world: AnthropicWorld) -> list[str]:
    """The texts before the breakpoints."""
    prompt = last_generate(world.http_world).prompt
    decode = world.http_world.tokenizer.decode
    return [decode(prompt[: 4 * (each.end or 0)], skip_special_tokens=False) for each in breakpoints(world)]


async def test_without_it_nothing_is_leased(world: AnthropicWorld) -> None:
    await world.create()
    assert last_generate(world.http_world).leases == []


async def test_a_part_of_the_system_prompt_is_leased_to_its_end(world: AnthropicWorld) -> None:
    await world.create(system=[text("the cat sat", EPHEMERAL), text("on the mat")])
    [shown] = leased(world)
    assert shown.rstrip() == "<|im_start|>system\nthe cat sat"
    assert [lease.ttl_s for lease in breakpoints(world)] == [300]


async def test_a_message_is_leased_to_the_end_of_its_block(world: AnthropicWorld) -> None:
    blocks = [text("the cat"), text("the dog", HOUR), text("the mat")]
    await world.create(messages=[{"role": "user", "content": blocks}])
    [shown] = leased(world)
    assert shown.rstrip() == "<|im_start|>user\nthe cat\nthe dog"
    assert [lease.ttl_s for lease in breakpoints(world)] == [3600]


async def test_a_tool_is_leased_with_the_tools_before_it(world: AnthropicWorld) -> None:
    first, second = TOOLS
    await world.create(tools=[{**first, "cache_control": EPHEMERAL}, second])
    [shown] = leased(world)
    assert "weather" in shown
    assert "clock" not in shown


async def test_a_reply_with_a_call_can_have_a_breakpoint(world: AnthropicWorld) -> None:
    world.says(called("weather", '{"city": "Rome"}'))
    turn = turn_of(await world.create(tools=TOOLS))
    turn["content"][-1]["cache_control"] = EPHEMERAL
    result = {"type": "tool_result", "tool_use_id": turn["content"][-1]["id"], "content": "sunny"}
    world.says("the dog")
    await world.create(tools=TOOLS, messages=[*HELLO, turn, {"role": "user", "content": [result]}])
    [shown] = leased(world)
    assert "Rome" in shown
    assert "sunny" not in shown


async def test_the_requests_own_cache_control_covers_all_messages(world: AnthropicWorld) -> None:
    await world.create(extra_body={"cache_control": EPHEMERAL})
    [shown] = leased(world)
    assert shown.rstrip().endswith("How is the weather?<|im_end|>")


async def test_breakpoints_rise_along_the_prompt_and_a_tools_covers_the_system_prompt(
    world: AnthropicWorld,
) -> None:
    first, second = TOOLS
    await world.create(
        tools=[first, {**second, "cache_control": EPHEMERAL}],
        system=[text("the cat", EPHEMERAL), text("the dog", EPHEMERAL)],
        messages=[{"role": "user", "content": [text("the mat", EPHEMERAL)]}],
    )
    ends = [lease.end or 0 for lease in breakpoints(world)]
    tool, cat, dog, mat = ends
    assert 0 < cat < dog <= tool < mat
    assert mat <= len(unpacked(last_generate(world.http_world).prompt))


async def test_created_tokens_are_told_by_the_time_of_their_breakpoint(world: AnthropicWorld) -> None:
    world.running.cached_tokens = 10
    words = "the cat sat on the mat " * 20
    try:
        message = await world.create(
            system=[text(words, HOUR)], messages=[{"role": "user", "content": [text(words, EPHEMERAL)]}]
        )
    finally:
        world.running.cached_tokens = 0
    first, second = (lease.end or 0 for lease in breakpoints(world))
    usage, page = message.usage, world.http_world.engine.model.page_size  # type: ignore[union-attr]
    assert usage.cache_creation.ephemeral_1h_input_tokens == first // page * page - 10
    assert usage.cache_creation.ephemeral_5m_input_tokens == second // page * page - first // page * page
    told = usage.cache_creation.ephemeral_1h_input_tokens + usage.cache_creation.ephemeral_5m_input_tokens
    assert told <= usage.cache_creation_input_tokens


@pytest.mark.parametrize(
    ("control", "param"),
    [
        ({"type": "persistent"}, "system[0].cache_control.type"),
        ({"type": "ephemeral", "ttl": "2h"}, "system[0].cache_control.ttl"),
    ],
)
async def test_a_wrong_value_is_refused_by_name(world: AnthropicWorld, control: Any, param: str) -> None:
    body = {"messages": HELLO, "max_tokens": 5, "system": [text("a", control)]}
    answer = await world.post(**body)
    assert answer.status_code == 400
    assert param in answer.json()["error"]["message"]


@pytest.mark.parametrize("count", [5, 8000])
async def test_too_many_breakpoints_are_counted_before_they_are_copied(
    world: AnthropicWorld, count: int
) -> None:
    tracemalloc.start()
    try:
        answer = await world.post(messages=HELLO, max_tokens=5, system=[text("a", EPHEMERAL)] * count)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.status_code == 400
    assert "at most 4" in answer.json()["error"]["message"]
    assert most < 64 << 20
