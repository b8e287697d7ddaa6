"""Requests to pin a prefix, over HTTP with a scripted scheduler."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.core.prepare import cache_namespace
from arbora.runtime.api_keys import ApiKey, key_hash
from arbora.runtime.messages import (
    Abort,
    CacheAnswer,
    CacheControl,
    Generate,
    PinPrefix,
    QueryRefused,
    Refused,
    UnpinPrefix,
)
from cache_answers import PAGE_BYTES, well
from fake_scheduler import packed, unpacked
from http_world import MODEL, HttpWorld, http_world
from raw_http import connection, request

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "the cat sat on the mat and the dog sat on the cat again"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain() -> AsyncIterator[HttpWorld]:
    async with http_world() as world:
        yield world


@pytest.fixture
def world(plain: HttpWorld) -> HttpWorld:
    plain.running.received.clear()
    plain.running.cache = well
    return plain


async def pin(world: HttpWorld, **body: Any) -> Any:
    return await world.http.post("/cache/pin", json={"prompt": TEXT, "ttl_s": 60, **body})


async def test_a_prefix_is_computed_and_then_pinned(world: HttpWorld) -> None:
    answer = await pin(world, cache_salt="mine", model=MODEL)
    computed, asked = world.running.of_kind(Generate), world.running.of_kind(PinPrefix)
    assert len(computed) == len(asked) == 1
    assert asked[0].tokens == packed(world.ids(TEXT))
    assert computed[0].prompt == packed(world.ids(TEXT)[: len(world.ids(TEXT)) // 16 * 16])
    assert computed[0].namespace == asked[0].namespace == cache_namespace("", "mine")
    assert computed[0].sampling.max_tokens == 1
    assert asked[0].ttl_s == 60
    shown = answer.json()
    pages = len(world.ids(TEXT)) // 16
    assert shown["id"] == asked[0].pin
    assert (shown["pages"], shown["tokens"], shown["bytes"]) == (pages, pages * 16, pages * PAGE_BYTES)
    assert 50 < shown["expires_at"] - time.time() <= 60


async def test_a_conversation_is_pinned_without_the_opening_of_a_reply(world: HttpWorld) -> None:
    messages = [{"role": "system", "content": TEXT}]
    await pin(world, prompt=None, messages=messages)
    (asked,) = world.running.of_kind(PinPrefix)
    assert world.text(unpacked(asked.tokens)) == f"<|im_start|>system\n{TEXT}<|im_end|>\n"


async def test_token_ids_are_pinned_as_they_are(world: HttpWorld) -> None:
    await pin(world, prompt=list(range(5, 25)))
    (asked,) = world.running.of_kind(PinPrefix)
    assert unpacked(asked.tokens) == list(range(5, 25))


async def test_pages_evicted_before_they_were_pinned_are_computed_again(world: HttpWorld) -> None:
    refusals = iter([True, False])

    def late(message: CacheControl) -> CacheAnswer:
        if isinstance(message, PinPrefix) and next(refusals):
            return QueryRefused(message.query, 503, "1 of 2 pages", "prompt", "prefix_not_cached")
        return well(message)

    world.running.cache = late
    assert (await pin(world)).status_code == 200
    assert len(world.running.of_kind(Generate)) == 2


async def test_a_pin_whose_pages_are_evicted_repeatedly_fails(world: HttpWorld) -> None:
    not_cached = partial(QueryRefused, status=503, message="1 of 2", param=None, code="prefix_not_cached")
    world.running.cache = lambda message: (
        not_cached(message.query) if isinstance(message, PinPrefix) else well(message)
    )
    answer = await pin(world)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "prefix_not_cached")
    assert len(world.running.of_kind(Generate)) == 3


@pytest.mark.parametrize(
    ("param", "value"), [("prompt", TEXT), ("messages", [{"role": "system", "content": TEXT}])]
)
async def test_a_pin_over_the_quota_is_refused_in_openais_form_before_it_is_computed(
    world: HttpWorld, param: str, value: object
) -> None:
    world.running.cache = lambda message: QueryRefused(
        message.query, 409, "3 more, 2 of 4", None, "pin_quota_exceeded"
    )
    answer = await pin(world, **{"prompt": None, param: value})
    assert answer.status_code == 409
    error = {"message": "3 more, 2 of 4", "type": "invalid_request_error"}
    assert answer.json()["error"] == {**error, "param": param, "code": "pin_quota_exceeded"}
    assert world.running.of_kind(Generate) == []


async def test_a_prefix_is_computed_with_the_priority_of_its_key() -> None:
    late = ApiKey(name="late", sha256=key_hash("secret"), priority=7, best_priority=5)
    async with http_world(api_keys=(late,)) as world:
        world.running.cache = well
        body, headers = {"prompt": TEXT, "ttl_s": 60}, {"x-api-key": "secret"}
        assert (await world.http.post("/cache/pin", json=body, headers=headers)).status_code == 200
        assert [computed.priority for computed in world.running.of_kind(Generate)] == [7]


async def test_a_prefix_whose_client_leaves_is_aborted_and_not_pinned(world: HttpWorld) -> None:
    world.running.gate.clear()
    try:
        async with connection(world.url) as raw:
            await raw.send(
                request("POST", "/cache/pin", body=json.dumps({"prompt": TEXT, "ttl_s": 60}).encode())
            )
            await world.until(lambda: bool(world.running.of_kind(Generate)))
        await world.until(lambda: bool(world.running.of_kind(Abort)))
        await world.until(lambda: not world.engine.open_requests)
    finally:
        world.running.gate.set()
    assert world.running.of_kind(PinPrefix) == []


async def test_a_prefix_that_can_not_be_computed_is_not_pinned(world: HttpWorld) -> None:
    world.running.refuse = lambda request: Refused(request.request, 400, "too long", "prompt", "too_long")
    try:
        answer = await pin(world)
    finally:
        world.running.refuse = lambda request: None
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_long")
    assert world.running.of_kind(PinPrefix) == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": 604801}, "ttl_s"),
        ({"ttl_s": "long"}, "ttl_s"),
        ({"prompt": "Hello"}, "prompt"),
        ({"prompt": None, "messages": [{"role": "user", "content": "Hello"}]}, "messages"),
        ({"prompt": None}, "prompt"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"prompt": [1 << 30] * 20}, "prompt"),
        ({"model": "other"}, "model"),
    ],
    ids=str,
)
async def test_a_pin_that_makes_no_sense_is_refused_by_its_field(
    world: HttpWorld, body: dict[str, Any], param: str
) -> None:
    answer = await pin(world, **body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param
    assert world.running.received == []


async def test_a_time_that_no_number_can_hold_is_called_too_large(world: HttpWorld) -> None:
    answer = await world.http.post(
        "/cache/pin",
        content='{"prompt": "a", "ttl_s": 1e400}',
        headers={"content-type": "application/json"},
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "ttl_s")
    assert error["message"] == "ttl_s is too large a number."


async def test_the_refusal_of_a_short_prefix_names_the_least_length(world: HttpWorld) -> None:
    error = (await pin(world, prompt=[1, 2, 3])).json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "prefix_too_short")
    assert error["message"] == (
        "The prefix has 3 tokens, but only full pages of 16 tokens are pinned: pin at least 16 tokens."
    )


async def test_a_pin_is_removed_by_its_id(world: HttpWorld) -> None:
    answer = await world.http.delete("/cache/pin/pin-7")
    assert answer.json() == {"id": "pin-7", "deleted": True}
    (asked,) = world.running.of_kind(UnpinPrefix)
    assert asked.pin == "pin-7"
