"""Explanations over HTTP with a scripted scheduler: whose prompts they tell of; prompt rules."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.runtime.messages import (
    CacheAnswer,
    CacheControl,
    CacheDropped,
    ExplainPrompt,
    PathNode,
    PromptExplained,
)
from http_world import HttpWorld, http_world, last_generate

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHATML_USER = "<|im_start|>user\n{}<|im_end|>\n"
TEXT = "the cat sat on the mat and the dog sat on the cat again"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    """A server whose two keys share the namespace without a salt. Nothing is ever cached."""
    async with http_world(api_keys=("first", "second"), context_length=1024) as world:
        yield world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def isolated() -> AsyncIterator[HttpWorld]:
    async with http_world(api_keys=("first", "second"), isolate_keys=True, context_length=1024) as world:
        yield world


def knowing(world: HttpWorld, remembered: int, behind: str) -> None:
    """The tree matches nothing, but remembers so many tokens, and has this text instead."""

    def answer(message: CacheControl) -> CacheAnswer:
        if not isinstance(message, ExplainPrompt):
            return CacheDropped(message.query, 0, 0)
        tokens = world.tokenizer.encode(behind, add_special_tokens=False)
        return PromptExplained(message.query, 0, remembered, tokens)

    world.running.cache = answer


async def asked(world: HttpWorld, text: str, key: str, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": text}], "explain_cache": True, **fields}
    headers = {"authorization": f"Bearer {key}"}
    answer = await world.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["cache_explanation"]


async def test_a_prompt_of_another_key_is_not_told_of(world: HttpWorld) -> None:
    knowing(world, 20, "a secret")
    for number, guess in enumerate(("a guess", "my secret")):
        secret = f"{number} is the number of {TEXT} {number} {TEXT}" if number else f"{TEXT} {TEXT}"
        await asked(world, f"my secret {secret}", "first")
        found = await asked(world, f"{guess} {secret}", "second")
        assert set(found["causes"]) <= {"new", "short"}
        assert found["difference"] is None or "secret" not in found["difference"]["earlier"]


async def test_ones_own_prompt_is(world: HttpWorld) -> None:
    knowing(world, 0, "")
    mine = f"{TEXT} and {TEXT}"
    await asked(world, f"the mat {mine}", "first")
    assert "evicted" in (await asked(world, f"the mat {mine}", "first"))["causes"]
    found = await asked(world, f"the dog {mine}", "first")
    assert found["causes"]["history"] > 16
    assert "the mat" in found["difference"]["earlier"]
    found = await asked(world, f"the mat {mine}", "first", cache_salt="a salt")
    assert found["causes"]["namespace"] > 16


async def test_a_prompt_that_was_computed_ahead_is_remembered(world: HttpWorld) -> None:
    knowing(world, 0, "")
    ahead = f"computed ahead: {TEXT} and {TEXT}"
    body = {"messages": [{"role": "user", "content": ahead}], "prompt_cache_options": {"prewarm": True}}
    answer = await world.http.post(
        "/v1/chat/completions", json=body, headers={"authorization": "Bearer first"}
    )
    assert answer.status_code == 200, answer.text
    assert (await asked(world, ahead, "first"))["causes"]["evicted"] > 16


async def test_the_tree_of_an_isolated_key_is_ones_own(isolated: HttpWorld) -> None:
    knowing(isolated, 16, "")
    assert (await asked(isolated, TEXT, "first"))["causes"]["evicted"] == 16
    assert "evicted" in (await asked(isolated, TEXT, "first"))["causes"]


async def test_dropping_the_cache_forgets_the_prompts(world: HttpWorld) -> None:
    knowing(world, 0, "")
    await asked(world, f"to forget {TEXT}", "first")
    assert world.service.recent.bytes_used > 0
    await world.http.delete("/cache", headers={"authorization": "Bearer first"})
    assert world.service.recent.bytes_used == 0


async def test_explaining_a_prompt_needs_a_valid_body(world: HttpWorld) -> None:
    headers = {"authorization": "Bearer first"}
    refused = await world.http.post("/cache/explain", json={"messages": 5}, headers=headers)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages"
    refused = await world.http.post("/cache/explain", content=b"[", headers=headers)
    assert refused.json()["error"]["code"] == "invalid_json"


SYSTEM_AMID = [
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "the mat"},
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "the dog"},
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_system_message_amid_a_chat_stays_where_it_is(world: HttpWorld, path: str) -> None:
    body = {"messages": SYSTEM_AMID, "max_tokens": 4}
    answer = await world.http.post(path, json=body, headers={"authorization": "Bearer first"})
    assert answer.status_code == 200, answer.text
    prompt = world.tokenizer.decode(last_generate(world).prompt, skip_special_tokens=False)
    places = [prompt.index(message["content"]) for message in SYSTEM_AMID]
    assert places == sorted(places)


async def test_rules_apply_to_all_that_renders_a_conversation() -> None:
    line = "x-anthropic-billing-header: cch=1f2e3;"
    messages = [{"role": "system", "content": f"{line}\nbe brief"}, {"role": "user", "content": TEXT}]
    async with http_world(prompt_rules=("billing-header",), context_length=1024) as world:
        knowing(world, 0, "")
        plain = [{"role": "system", "content": "be brief"}, messages[1]]
        for path in ("/tokenize", "/v1/chat/completions", "/cache/explain"):
            answer = await world.http.post(path, json={"messages": messages})
            assert answer.status_code == 200, answer.text
            expected = await world.http.post("/tokenize", json={"messages": plain})
            count = answer.json().get("count") or answer.json().get("prompt_tokens")
            count = count or answer.json()["usage"]["prompt_tokens"]
            assert count == expected.json()["count"]
        assert answer.json()["prompt_rules"] == ["billing-header"]


async def test_a_chat_is_explained_as_one_whatever_else_it_has(world: HttpWorld) -> None:
    knowing(world, 0, "")
    body = {"messages": [{"role": "user", "content": TEXT}], "input": 5, "conversation": [], "prompt": {}}
    headers = {"authorization": "Bearer first"}
    answer = await world.http.post("/cache/explain", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["prompt_tokens"] > len(world.ids(TEXT))


async def test_a_body_after_a_byte_order_mark_is_explained_by_its_fields(world: HttpWorld) -> None:
    knowing(world, 0, "")
    headers = {"authorization": "Bearer first"}
    body = b'\xef\xbb\xbf{"prompt_token_ids": [5, 6, 7]}'
    answer = await world.http.post("/cache/explain", content=body, headers=headers)
    assert answer.status_code == 200, answer.text


async def test_a_body_that_two_apis_may_have_is_explained_once_its_path_is_named(world: HttpWorld) -> None:
    knowing(world, 0, "")
    body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 5}
    both, key = {**body, "system": "be brief"}, {"authorization": "Bearer first"}

    async def explained(body: dict[str, Any], query: str = "", **headers: str) -> Any:
        answer = await world.http.post(f"/cache/explain{query}", json=body, headers={**key, **headers})
        return answer.json()

    chat = (await explained(body))["prompt_tokens"]
    refused = (await explained(both))["error"]
    assert (refused["param"], refused["code"]) == ("path", "invalid_value")
    assert "/cache/explain?path=/v1/messages, or leave system out" in refused["message"]
    assert (await explained(both, "?path=/v1/chat/completions"))["prompt_tokens"] == chat
    messages = (await explained(both, "?path=/v1/messages"))["prompt_tokens"]
    assert messages > chat
    assert (await explained(both, **{"anthropic-version": "2023-06-01"}))["prompt_tokens"] == messages


async def test_a_path_whose_bodies_are_not_explained_is_refused(world: HttpWorld) -> None:
    headers = {"authorization": "Bearer first"}
    answer = await world.http.post("/cache/explain?path=/api/chat", json={"messages": []}, headers=headers)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.startswith("path is '/api/chat', but must be one of /v1/chat/completions, /v1/messages")


async def test_a_cached_prompt_differs_from_nothing_if_a_reply_follows_it_in_the_cache() -> None:
    async with http_world(context_length=1024) as world:  # which remembers no earlier prompt

        def all_cached(message: CacheControl) -> CacheAnswer:
            assert isinstance(message, ExplainPrompt)
            length = len(message.tokens) // 4
            reply = world.tokenizer.encode("a reply", add_special_tokens=False)
            return PromptExplained(message.query, length, length, reply)

        world.running.cache = all_cached
        found = (await world.http.post("/cache/explain", json={"prompt": TEXT})).json()
    assert found["matched_tokens"] == found["prompt_tokens"] - 1
    assert found["causes"] == {"short": 1}
    assert found["difference"] is None


# The messages of a prompt

TURNS = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "the cat"}]


def sharing(world: HttpWorld, matched: int, remembered: int) -> None:
    """The tree has so many tokens, which go through two nodes, and branch 3 times at each place asked for."""

    def answer(message: CacheControl) -> CacheAnswer:
        assert isinstance(message, ExplainPrompt) and message.ends == sorted(message.ends)
        nodes = [PathNode(7, matched), PathNode(None, remembered - matched)]
        shared_by = [3] * len(message.ends)
        return PromptExplained(message.query, matched, remembered, b"", matched, nodes, shared_by)

    world.running.cache = answer


async def test_each_message_says_how_many_of_its_tokens_are_cached(isolated: HttpWorld) -> None:
    first = len(isolated.ids(CHATML_USER.format(TEXT)))
    sharing(isolated, matched=first - 2, remembered=first + 3)
    headers = {"authorization": "Bearer first"}
    answer = await isolated.http.post("/cache/explain", json={"messages": TURNS}, headers=headers)
    found = answer.json()
    user, reply, template = found["messages"]
    counts = {"tokens": first, "cached_tokens": first - 2, "evicted_tokens": 2, "shared_by": 3}
    assert user == {"index": 0, "role": "user", **counts}
    assert (reply["index"], reply["role"], reply["evicted_tokens"], reply["shared_by"]) == (
        1,
        "assistant",
        3,
        3,
    )
    assert (template["index"], template["role"], template["shared_by"]) == (None, "template", 0)
    assert sum(each["tokens"] for each in found["messages"]) == found["prompt_tokens"]
    assert found["nodes"] == [{"id": 7, "tokens": first - 2}, {"id": None, "tokens": 5}]


async def test_keys_that_share_a_namespace_are_not_told_what_the_tree_has(world: HttpWorld) -> None:
    sharing(world, matched=4, remembered=9)
    headers = {"authorization": "Bearer first"}
    found = (await world.http.post("/cache/explain", json={"messages": TURNS}, headers=headers)).json()
    assert [each["shared_by"] for each in found["messages"]] == [None] * 3
    assert [each["evicted_tokens"] for each in found["messages"]] == [0] * 3
    assert found["nodes"] == []


async def test_a_prompt_without_messages_has_none_in_its_explanation(world: HttpWorld) -> None:
    knowing(world, 0, "")
    headers = {"authorization": "Bearer first"}
    found = (await world.http.post("/cache/explain", json={"prompt": TEXT}, headers=headers)).json()
    assert not {"messages", "nodes"} & set(found)
