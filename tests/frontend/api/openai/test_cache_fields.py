"""OpenAI's fields of the prompt cache become leases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.core.text.chat_template import ChatTemplate
from arbora.runtime.messages import AwaitTools, EndLease, LeaseTerms
from chat_templates import LLAMA3
from fake_scheduler import unpacked
from http_world import MODEL, HttpWorld, http_world, last_generate

pytestmark = pytest.mark.asyncio(loop_scope="module")
CAT: Any = [{"role": "user", "content": "the cat"}]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WEATHER: Any = [{"type": "function", "function": {"name": "weather"}}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain() -> AsyncIterator[HttpWorld]:
    async with http_world(TEMPLATE, context_length=4096) as world:
        yield world


@pytest.fixture
def world(plain: HttpWorld) -> HttpWorld:
    plain.script = plain.says("the dog")
    plain.running.received.clear()
    return plain


async def leases(world: HttpWorld, path: str = "/v1/chat/completions", **body: Any) -> list[LeaseTerms]:
    start: dict[str, Any] = {"messages": CAT} if "chat" in path else {"prompt": "the cat"}
    answer = await world.http.post(path, json={"model": MODEL, **start, **body})
    assert answer.status_code == 200, answer.text
    return last_generate(world).leases


def mark(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "prompt_cache_breakpoint": {"mode": "explicit"}}


async def test_without_such_fields_nothing_is_leased(world: HttpWorld) -> None:
    assert await leases(world) == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("body", "ttl_s", "key"),
    [
        ({"prompt_cache_key": "ada"}, 1800, "ada"),
        ({"prompt_cache_retention": "24h", "prompt_cache_key": "ada"}, 86400, "ada"),
        ({"prompt_cache_retention": "in_memory"}, 1800, ""),
        ({"prompt_cache_options": {"ttl": "12h"}}, 43200, ""),
        ({"prompt_cache_options": {"ttl": "45s"}, "prompt_cache_retention": "24h"}, 45, ""),
    ],
)
async def test_a_key_or_an_option_leases_the_conversation(
    world: HttpWorld, path: str, body: dict[str, Any], ttl_s: float, key: str
) -> None:
    assert await leases(world, path, **body) == [LeaseTerms("conversation", ttl_s, key)]


async def test_explicit_mode_leases_no_more_than_the_breakpoints(world: HttpWorld) -> None:
    assert await leases(world, prompt_cache_options={"mode": "explicit"}) == []


async def test_a_breakpoint_is_where_its_part_ends(world: HttpWorld) -> None:
    first, second = mark("the cat sat on the mat"), {"type": "text", "text": "and the dog"}
    messages = [{"role": "user", "content": [first, second]}]
    [lease] = await leases(world, messages=messages, prompt_cache_options={"ttl": "1h", "mode": "explicit"})
    assert (lease.kind, lease.ttl_s) == ("breakpoint", 3600)
    text = world.tokenizer.decode(
        last_generate(world).prompt[: 4 * (lease.end or 0)], skip_special_tokens=False
    )
    assert text.rstrip() == "<|im_start|>user\nthe cat sat on the mat"


NO_SYSTEM_ROLE = (
    "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('No system!') }}"
    "{% endif %}{% endfor %}" + TEMPLATE
)


async def test_a_breakpoint_has_the_form_that_the_whole_conversation_got(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    render, renders = ChatTemplate.render, []

    def counted(*arguments: Any, **named: Any) -> str:
        renders.append(named.get("add_generation_prompt"))
        return render(*arguments, **named)

    async with http_world(NO_SYSTEM_ROLE) as world:
        assert world.service.template is not None
        world.service.template.support(with_tools=False)
        monkeypatch.setattr(ChatTemplate, "render", counted)
        parts = [mark("the cat"), mark("sat on the mat"), {"type": "text", "text": "and the dog"}]
        terms = await leases(world, messages=[{"role": "system", "content": parts}, *CAT])
        prompt = last_generate(world).prompt
        texts = [world.text(unpacked(prompt[: 4 * (lease.end or 0)])) for lease in terms]
    shown = "<|im_start|>user\nthe cat"
    assert [text.rstrip() for text in texts] == [shown, f"{shown}\nsat on the mat"]
    assert renders == [True, True, False, False], "two forms of the whole, then the two beginnings"


async def test_a_breakpoint_on_the_system_message_is_leased_though_the_template_needs_a_user() -> None:
    """This template writes the tools into the first message of the user."""
    async with http_world(LLAMA3, context_length=4096) as world:
        messages = [{"role": "system", "content": [mark("the dog sat on the mat")]}, *CAT]
        lease, _ = await leases(world, messages=messages, tools=WEATHER)
        prompt = last_generate(world).prompt
        text = world.text(unpacked(prompt[: 4 * (lease.end or 0)]))
    assert lease.kind == "breakpoint"
    assert "the dog sat on the mat" in text and "the cat" not in text


async def test_prewarming_computes_the_prompt_alone(world: HttpWorld) -> None:
    [lease] = await leases(world, prompt_cache_options={"prewarm": True})
    assert lease.kind == "conversation"
    assert last_generate(world).sampling.max_tokens == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt_cache_key": "k" * 257}, "prompt_cache_key"),
        ({"prompt_cache_retention": "1y"}, "prompt_cache_retention"),
        ({"prompt_cache_options": {"mode": "none"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_options": {"ttl": "8d"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_options": {"ttl": "0m"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_options": {"prewarm": True}, "stream": True}, "prompt_cache_options.prewarm"),
        ({"messages": [{"role": "user", "content": [mark("a")] * 5}]}, "prompt_cache_breakpoint"),
        ({"cache_lease": {"ttl_s": 0}}, "cache_lease.ttl_s"),
        ({"cache_lease": {"ttl_s": 1, "most": 65}}, "cache_lease.most"),
    ],
)
async def test_a_wrong_value_is_refused_by_name(world: HttpWorld, body: dict[str, Any], param: str) -> None:
    answer = await world.http.post("/v1/chat/completions", json={"model": MODEL, "messages": CAT, **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_the_longest_time_is_a_whole_number_of_seconds(world: HttpWorld) -> None:
    body = {"model": MODEL, "messages": CAT, "cache_lease": {"ttl_s": 1e9}}
    answer = await world.http.post("/v1/chat/completions", json=body)
    message = answer.json()["error"]["message"]
    assert "at most 604800" in message and "604800.0" not in message


async def test_a_session_keeps_several_leases(world: HttpWorld) -> None:
    lease = {"key": "program-1", "ttl_s": 60, "most": 8}
    assert await leases(world, cache_lease=lease) == [LeaseTerms("session", 60, "program-1", most=8)]


async def test_a_request_that_only_scores_leases_what_comes_before_the_scored_tokens(
    world: HttpWorld,
) -> None:
    scores = {"prompt_logprobs": 0, "prompt_logprobs_start": 2, "cache_lease": {"ttl_s": 60}}
    terms = [LeaseTerms("session", 60, end=2)]
    assert await leases(world, "/v1/completions", **scores, max_tokens=0) == terms
    assert await leases(world, "/v1/completions", **scores, max_tokens=1) == [LeaseTerms("session", 60)]


async def test_a_request_without_the_cache_leases_nothing(world: HttpWorld) -> None:
    assert await leases(world, prompt_cache_key="ada", cache_prompt=False) == []


async def test_a_session_is_ended_by_its_key(world: HttpWorld) -> None:
    answer = await world.http.delete("/cache/lease/program-1?cache_salt=s&user=bob")
    assert (answer.status_code, answer.json()) == (202, {"key": "program-1"})
    await leases(world, cache_salt="s", user="bob")
    sent = last_generate(world)
    assert world.running.of_kind(EndLease) == [EndLease(sent.namespace or "", sent.tenant, "program-1")]


async def test_leases_without_a_key_are_not_ended(world: HttpWorld) -> None:
    answer = await world.http.delete("/cache/lease/")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "key")
    await leases(world)
    assert not world.running.of_kind(EndLease)


async def test_a_reply_that_calls_tools_says_which(world: HttpWorld) -> None:
    world.script = world.says('<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>')
    assert [lease.kind for lease in await leases(world, tools=WEATHER)] == ["tool_pause"]
    assert world.running.of_kind(AwaitTools) == [AwaitTools(last_generate(world).request, ["weather"])]


async def test_a_reply_without_calls_awaits_no_tools(world: HttpWorld) -> None:
    await leases(world, tools=WEATHER)
    assert world.running.of_kind(AwaitTools) == []


async def test_written_tokens_are_those_computed_and_kept(world: HttpWorld) -> None:
    world.running.cached_tokens = 2
    try:
        answer = await world.http.post("/v1/completions", json={"model": MODEL, "prompt": "the cat sat on"})
        private = await world.http.post(
            "/v1/completions", json={"model": MODEL, "prompt": "the cat sat on", "cache_prompt": False}
        )
    finally:
        world.running.cached_tokens = 0
    total = len(unpacked(last_generate(world).prompt))
    details = answer.json()["usage"]["prompt_tokens_details"]
    assert details == {"cached_tokens": 2, "cache_write_tokens": total - 2}
    assert private.json()["usage"]["prompt_tokens_details"]["cache_write_tokens"] == 0
