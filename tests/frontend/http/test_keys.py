"""Requests of API keys with limits: what reaches the scheduler, and what the client is told."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from arbora.runtime.api_keys import Allowance, Allowances, ApiKey, Quota, key_hash
from arbora.runtime.messages import Accepted, Generate, Message, NewKeys, Refused
from http_world import HttpWorld, http_world, last_generate

LEFT = Allowances(Allowance(60, 59, 1.0), Allowance(1000, 400, 36.0))


def key(name: str = "ada", **limits: Any) -> ApiKey:
    return ApiKey(name=name, sha256=key_hash(f"{name}'s secret"), **limits)


async def ask(
    world: HttpWorld, name: str = "ada", path: str = "/v1/chat/completions", **body: Any
) -> httpx.Response:
    headers = {"x-api-key": f"{name}'s secret"}
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 50, **body}
    return await world.http.post(path, json=body, headers=headers)


def with_allowances(world: HttpWorld) -> None:
    send = world.running.send

    def sending(message: Message) -> None:
        if isinstance(message, Accepted | Refused):
            message.allowances = LEFT
        send(message)

    world.running.send = sending  # type: ignore[method-assign]


async def test_a_key_shortens_replies_and_gives_its_priority_and_quota() -> None:
    limited = key(max_tokens=3, priority=5, best_priority=2, requests_per_minute=60, concurrent_requests=2)
    async with http_world(api_keys=[limited]) as world:
        answer = (await ask(world)).json()
        sent = last_generate(world)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert (sent.sampling.max_tokens, sent.priority) == (3, 5)
        assert sent.quota == Quota("ada", len(sent.prompt) // 4, 60, None, 2)


async def test_the_limit_of_a_key_is_no_end_of_the_context() -> None:
    async with http_world(api_keys=[key(max_tokens=3)]) as world:
        answer = (await ask(world, path="/v1/messages")).json()
    assert (answer["usage"]["output_tokens"], answer["stop_reason"]) == (3, "max_tokens")


async def test_more_tokens_than_a_key_allows_can_not_be_the_fewest_of_a_reply() -> None:
    async with http_world(api_keys=[key(max_tokens=5)]) as world:
        answer = await ask(world, min_tokens=6)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "min_tokens")
        expected = "min_tokens is 6, but the replies of the API key ada have at most 5 tokens: lower it."
        assert answer.json()["error"]["message"] == expected
        assert (await ask(world, min_tokens=5)).json()["usage"]["completion_tokens"] == 5


async def test_only_the_first_choice_has_the_tokens_of_the_prompts() -> None:
    async with http_world(api_keys=[key(tokens_per_minute=1000)]) as world:
        await ask(world, n=2)
        quotas = [sent.quota for sent in world.running.of_kind(Generate)]
        assert [quota.prompt_tokens is None for quota in quotas if quota is not None] == [False, True]


async def test_a_priority_better_than_the_key_allows_is_refused() -> None:
    async with http_world(api_keys=[key(best_priority=0)]) as world:
        answer = await ask(world, priority=-1)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "priority")
        assert "the API key ada allows 0" in answer.json()["error"]["message"]
        assert (await ask(world, priority=1)).status_code == 200


async def test_a_key_without_limits_has_no_quota_and_no_headers() -> None:
    async with http_world(api_keys=["plain"]) as world:
        headers = {"Authorization": "Bearer plain"}
        body = {"prompt": "a", "max_tokens": 1}
        answer = await world.http.post("/v1/completions", json=body, headers=headers)
        assert last_generate(world).quota is None
        assert not [name for name in answer.headers if "ratelimit" in name]


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_say_what_is_left_as_openai_does(stream: bool) -> None:
    async with http_world(api_keys=[key(requests_per_minute=60)]) as world:
        with_allowances(world)
        answer = await ask(world, stream=stream)
        found = {name: value for name, value in answer.headers.items() if "ratelimit" in name}
    assert found == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "400",
        "x-ratelimit-reset-tokens": "36s",
    }


async def test_anthropics_answers_have_anthropics_headers() -> None:
    async with http_world(api_keys=[key(requests_per_minute=60)]) as world:
        with_allowances(world)
        answer = await ask(world, path="/v1/messages")
        assert answer.headers["anthropic-ratelimit-requests-remaining"] == "59"
        assert answer.headers["anthropic-ratelimit-tokens-limit"] == "1000"
        assert answer.headers["anthropic-ratelimit-tokens-reset"].endswith("Z")


async def test_a_refusal_has_its_code_retry_after_and_what_is_left() -> None:
    async with http_world(api_keys=[key(requests_per_minute=60)]) as world:
        world.running.refuse = lambda request: Refused(
            request.request, 429, "Too many.", None, "requests_per_minute_exceeded", 7, LEFT
        )
        answer = await ask(world)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
        assert answer.json()["error"]["code"] == "requests_per_minute_exceeded"
        assert answer.headers["x-ratelimit-remaining-requests"] == "59"


async def test_new_keys_replace_the_old_ones_and_open_streams_finish() -> None:
    async with http_world(api_keys=[key("ada")]) as world:
        world.running.pauses = True
        request = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
        sent = {"x-api-key": "ada's secret"}
        async with world.http.stream("POST", "/v1/chat/completions", json=request, headers=sent) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            world.supervisor.send(NewKeys((key("bob"),)))
            await world.until(lambda: world.http_service.keys.find("bob's secret") is not None)
            world.running.pauses = False
            world.running.gate.set()
            assert [line async for line in lines][-2] == "data: [DONE]"
        assert (await ask(world, "ada")).status_code == 401
        assert (await ask(world, "bob")).status_code == 200


async def test_answers_and_tokens_are_counted_by_the_names_of_keys() -> None:
    async with http_world(api_keys=[key(best_priority=0)]) as world:
        usage = (await ask(world)).json()["usage"]
        await ask(world, priority=-1)
        text = (await world.http.get("/metrics")).text
    assert 'arbora_key_answers_total{key="ada",status="200"} 1.0' in text
    assert 'arbora_key_answers_total{key="ada",status="400"} 1.0' in text
    assert f'arbora_key_tokens_total{{key="ada",kind="completion"}} {usage["completion_tokens"]:.1f}' in text
    assert "secret" not in text and key_hash("ada's secret") not in text
