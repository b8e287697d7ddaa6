"""OpenAI's fields of the prompt cache mean in responses what they mean in chats."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.runtime.messages import LeaseTerms
from fake_scheduler import unpacked
from http_world import last_generate
from responses_world import ResponsesWorld, responses_world

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[ResponsesWorld]:
    async with responses_world() as world:
        world.says("Hello")
        yield world


async def leases(world: ResponsesWorld, **body: Any) -> list[LeaseTerms]:
    answer = await world.post(**body)
    assert answer.status_code == 200, answer.text
    return last_generate(world.http_world).leases


def mark(text: str, mode: str = "explicit") -> dict[str, Any]:
    return {"type": "input_text", "text": text, "prompt_cache_breakpoint": {"mode": mode}}


def said(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    ("body", "ttl_s", "key"),
    [
        ({"prompt_cache_key": "codex"}, 1800, "codex"),
        ({"prompt_cache_retention": "24h", "prompt_cache_key": "codex"}, 86400, "codex"),
        ({"prompt_cache_options": {"ttl": "12h"}}, 43200, ""),
    ],
)
@pytest.mark.parametrize("store", [False, True])
async def test_a_key_or_an_option_leases_the_conversation(
    world: ResponsesWorld, store: bool, body: dict[str, Any], ttl_s: float, key: str
) -> None:
    assert await leases(world, store=store, **body) == [LeaseTerms("conversation", ttl_s, key)]


async def test_explicit_mode_leases_no_more_than_the_breakpoints(world: ResponsesWorld) -> None:
    options = {"mode": "explicit", "ttl": "1h"}
    assert await leases(world, prompt_cache_options=options) == []
    text = {"type": "input_text", "text": "How are you?"}
    [lease] = await leases(world, prompt_cache_options=options, input=said(mark("Hello there"), text))
    assert (lease.kind, lease.ttl_s) == ("breakpoint", 3600)
    prompt = unpacked(last_generate(world.http_world).prompt)
    assert world.http_world.text(prompt[: lease.end]).rstrip() == "<|im_start|>user\nHello there"


async def test_a_breakpoint_may_be_in_the_output_of_a_tool(world: ResponsesWorld) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": [mark("A long file")]}
    items = [{"role": "user", "content": "Hello"}, call, output, {"role": "user", "content": "And now?"}]
    [lease] = await leases(world, input=items, store=False)
    prompt = unpacked(last_generate(world.http_world).prompt)
    assert world.http_world.text(prompt[: lease.end]).rstrip().endswith("A long file<|im_end|>")


async def test_prewarming_computes_the_prompt_alone(world: ResponsesWorld) -> None:
    response = await world.create(prompt_cache_options={"prewarm": True}, store=False)
    sent = last_generate(world.http_world)
    assert (sent.sampling.max_tokens, [lease.kind for lease in sent.leases]) == (0, ["conversation"])
    assert (response.status, response.output, response.usage.output_tokens) == ("completed", [], 0)


async def test_a_prewarmed_response_can_be_continued(world: ResponsesWorld) -> None:
    first = await world.create(input="Ahead", prompt_cache_options={"prewarm": True})
    await world.create(input="Go on", previous_response_id=first.id)
    prompt = world.http_world.text(unpacked(last_generate(world.http_world).prompt))
    assert prompt.index("Ahead") < prompt.index("Go on")


async def test_prewarming_a_turn_of_a_conversation_leaves_the_conversation_as_it_was(
    world: ResponsesWorld,
) -> None:
    made = await world.client.conversations.create()
    prewarmed = await world.create(
        input="Ahead", conversation=made.id, prompt_cache_options={"prewarm": True}
    )
    sent = last_generate(world.http_world)
    assert (prewarmed.store, [lease.kind for lease in sent.leases]) == (False, ["conversation"])
    await world.create(input="Ahead", conversation=made.id)
    assert last_generate(world.http_world).prompt == sent.prompt
    assert len((await world.client.conversations.items.list(made.id)).data) == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (
            {"prompt_cache_options": {"prewarm": True}, "conversation": "conv_1", "background": True},
            "background",
        ),
        ({"prompt_cache_key": "k" * 257}, "prompt_cache_key"),
        ({"prompt_cache_retention": "1y"}, "prompt_cache_retention"),
        ({"prompt_cache_options": {"mode": "none"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_options": {"ttl": "8d"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_options": {"prewarm": True}, "stream": True}, "prompt_cache_options.prewarm"),
        ({"input": said(*[mark("a")] * 5)}, "prompt_cache_breakpoint"),
        ({"input": said(mark("a", "no"))}, "input[0].content[0].prompt_cache_breakpoint.mode"),
    ],
)
async def test_a_wrong_value_is_refused_by_name(
    world: ResponsesWorld, body: dict[str, Any], param: str
) -> None:
    answer = await world.post(**body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_counting_the_tokens_of_a_prompt_ignores_the_fields(world: ResponsesWorld) -> None:
    body = {"input": said(mark("a", "no")), "prompt_cache_key": "codex", "prompt_cache_options": {}}
    answer = await world.request("POST", "/v1/responses/input_tokens", json=body)
    assert answer.status_code == 200, answer.text
