"""Requests that concern the cache, over HTTP with a scripted scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.core.prepare import cache_namespace
from arbora.frontend.core.replica.questions import Questions
from arbora.runtime.messages import (
    CacheDropped,
    DropCache,
    EndLease,
    LeaseTerms,
    Message,
    Pin,
    PinPrefix,
    QueryCache,
    TopPrefix,
    UnpinPrefix,
)
from cache_answers import PAGE_BYTES, report, well
from fake_scheduler import packed
from http_world import HttpWorld, eventually, http_world, last_generate

pytestmark = pytest.mark.asyncio(loop_scope="module")
ASKED: Any = {"messages": [{"role": "user", "content": "Hello"}], "stream": False}
BODIES: dict[str, Any] = {
    "/v1/chat/completions": ASKED,
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello", "store": False},
    "/v1/messages": {**ASKED, "max_tokens": 5},
    "/api/chat": ASKED,
    "/api/generate": {"prompt": "Hello", "stream": False},
    "/generate": {"prompt": "Hello"},
}
TEXT = "the cat sat on the mat and the dog sat on the cat again"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain() -> AsyncIterator[HttpWorld]:
    async with http_world() as world:
        yield world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def isolated() -> AsyncIterator[HttpWorld]:
    async with http_world(api_keys=("first", "second"), isolate_keys=True) as world:
        yield world


@pytest.fixture
def world(plain: HttpWorld) -> HttpWorld:
    plain.running.received.clear()
    plain.running.cache = well
    return plain


async def namespace(world: HttpWorld, key: str = "none", **body: Any) -> str | None:
    """The namespace of a completion's prompt."""
    headers = {"authorization": f"Bearer {key}"}
    answer = await world.http.post("/v1/completions", json={"prompt": "Hello", **body}, headers=headers)
    assert answer.status_code == 200, answer.text
    return last_generate(world).namespace


# Reports


async def test_the_cache_is_shown_in_pages_tokens_and_bytes(world: HttpWorld) -> None:
    shown = (await world.http.get("/cache")).json()
    assert shown["page_tokens"] == 16
    assert shown["sizes"]["cached"] == {"pages": 10, "tokens": 160, "bytes": 10 * PAGE_BYTES}
    assert {name: size["pages"] for name, size in shown["sizes"].items()} == {
        "total": 64,
        "free": 50,
        "used": 4,
        "cached": 10,
        "pinned": 2,
        "pinnable": 16,
        "leased": 0,
    }
    assert shown["hit_rate"] == {"rate": 0.75, "prompt_tokens": 1000, "cached_tokens": 750}
    assert shown["recent_hit_rate"]["rate"] == 0.9
    assert shown["recent_hit_rate"]["requests"] == 4
    assert shown["evicted_pages"] == 5
    assert shown["tiers"] == {
        "host": {"pages": 3, "bytes": 3 * PAGE_BYTES, "found": 7},
        "disk": {"pages": 9, "bytes": 0, "found": 0},
        "remote_found": 0,
        "restored_pages": 6,
    }


async def test_namespaces_are_shown_by_a_name_that_does_not_reveal_the_salt(world: HttpWorld) -> None:
    world.running.cache = lambda message: report(
        message.query, namespaces={"": 3, cache_namespace("", "secret"): 7}
    )
    answer = await world.http.get("/cache", params={"cache_salt": "secret"})
    namespaces = answer.json()["namespaces"]
    assert [(each["own"], each["size"]["pages"]) for each in namespaces] == [(False, 3), (True, 7)]
    assert "secret" not in answer.text


async def test_texts_are_shown_only_to_clients_that_share_them(world: HttpWorld) -> None:
    head, tail = packed(world.ids(TEXT * 3)), packed(world.ids("And so on. " * 9 + TEXT))
    prefixes = [
        (TopPrefix(cache_namespace("", "mine"), 90, 7, 12, None, None), head, tail),
        (TopPrefix("theirs", 80, 6, 0, None, None), b"", b""),
    ]
    world.running.cache = lambda message: report(message.query, prefixes=prefixes)
    shown = (await world.http.get("/cache", params={"cache_salt": "mine"})).json()["prefixes"]
    assert [(each["tokens"], each["hits"], each["idle"]) for each in shown] == [(90, 7, 12), (80, 6, 0)]
    assert [each["text"] for each in shown] == [(TEXT * 3)[:80], None]
    assert [each["end"] for each in shown] == [("And so on. " * 9 + TEXT)[-80:], None]


async def test_texts_that_several_keys_share_are_shown_to_none() -> None:
    async with http_world(api_keys=("first", "second")) as world:
        tokens = packed(world.ids(TEXT))
        prefixes = [(TopPrefix("", 90, 7, 12, None, None), tokens, tokens)]
        world.running.cache = lambda message: report(message.query, prefixes=prefixes)
        answer = await world.http.get("/cache", headers={"Authorization": "Bearer first"})
        assert [(each["text"], each["end"]) for each in answer.json()["prefixes"]] == [(None, None)]


async def test_pins_are_shown_with_their_end(world: HttpWorld) -> None:
    pins = [Pin("pin-1", "", 48, 3, 1234.5, 0)]
    world.running.cache = lambda message: report(message.query, pins=pins)
    (shown,) = (await world.http.get("/cache")).json()["pins"]
    assert (shown["id"], shown["tokens"], shown["pages"], shown["bytes"], shown["expires_at"]) == (
        "pin-1",
        48,
        3,
        3 * PAGE_BYTES,
        1234.5,
    )


# Dropping


@pytest.mark.parametrize(
    ("query", "expected"),
    [({}, None), ({"cache_salt": "x"}, cache_namespace("", "x")), ({"cache_salt": ""}, "")],
)
async def test_a_drop_is_of_everything_or_of_one_salt(
    world: HttpWorld, query: dict[str, str], expected: str | None
) -> None:
    answer = await world.http.delete("/cache", params=query)
    assert answer.json() == {
        "freed": {"pages": 3, "tokens": 47, "bytes": 3 * PAGE_BYTES},
        "tiers": {"host": 1, "disk": 2, "remote": 4},
    }
    (asked,) = world.running.of_kind(DropCache)
    assert (asked.scope, asked.namespace) == ("", expected)


async def test_a_drop_reports_an_unreachable_remote_cache(
    world: HttpWorld,
) -> None:
    world.running.cache = lambda message: CacheDropped(message.query, 3, 47, 1, 2, None)
    answer = (await world.http.delete("/cache")).json()
    assert answer["freed"]["pages"] == 3
    error = answer["tiers"].pop("remote_error")
    assert answer["tiers"] == {"host": 1, "disk": 2, "remote": None}
    assert "can't be reached" in error


async def test_a_drop_reports_a_failed_disk_cache(world: HttpWorld) -> None:
    world.running.cache = lambda message: CacheDropped(message.query, 3, 47, 1, None, 4)
    tiers = (await world.http.delete("/cache")).json()["tiers"]
    assert "may still have some" in tiers.pop("disk_error")
    assert tiers == {"host": 1, "disk": None, "remote": 4}


async def test_a_drop_fails_at_once_when_the_replica_dies() -> None:
    async with http_world() as world:
        world.running.cache = lambda message: CacheDropped(message.query + 1, 0, 0)  # for another query
        dropping = asyncio.create_task(world.http.delete("/cache"))
        await eventually(lambda: bool(world.running.of_kind(DropCache)))
        await world.kill_replica()
        await eventually(dropping.done)
    error = dropping.result().json()["error"]
    assert (dropping.result().status_code, error["code"]) == (503, "no_answer")
    assert "may still be carried out later, which GET /cache shows" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("GET", "/cache", "there is cache_salt, model"),
        ("DELETE", "/cache", "there is cache_salt, model"),
        ("POST", "/cache/pin", "none is known here"),
        ("DELETE", "/cache/pin/pin-7", "none is known here"),
    ],
)
async def test_an_unknown_query_parameter_is_refused_and_drops_nothing(
    world: HttpWorld, method: str, path: str, known: str
) -> None:
    body = {"prompt": TEXT, "ttl_s": 60} if method == "POST" else None
    answer = await world.http.request(method, path, params={"salt": "1"}, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "salt")
    assert error["message"] == f"The query parameter 'salt' is unknown: {known}."
    assert world.running.received == []


async def test_a_query_parameter_may_be_given_once(world: HttpWorld) -> None:
    answer = await world.http.delete("/cache?cache_salt=a&cache_salt=b")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "cache_salt")
    assert "more than once" in error["message"]
    assert world.running.received == []


# Which client sees which prefixes


async def test_without_isolation_the_salt_alone_is_the_namespace(world: HttpWorld) -> None:
    assert await namespace(world) == ""
    assert await namespace(world, cache_salt="x") == cache_namespace("", "x")


async def test_a_namespace_does_not_reveal_the_salt(world: HttpWorld) -> None:
    assert "sesame" not in (await namespace(world, cache_salt="sesame") or "")


async def test_a_request_may_opt_out_of_the_cache(world: HttpWorld) -> None:
    assert await namespace(world, cache_prompt=False, cache_salt="x") is None
    assert await namespace(world, cache_prompt=True, cache_salt="x") == cache_namespace("", "x")


async def test_isolated_keys_have_namespaces_of_their_own_for_every_salt(isolated: HttpWorld) -> None:
    bodies: list[dict[str, str]] = [{}, {"cache_salt": "x"}]
    names = [await namespace(isolated, key, **body) for key in ("first", "second") for body in bodies]
    assert len(set(names)) == 4
    assert names[1] == cache_namespace(names[0] or "", "x") and names[3] == cache_namespace(
        names[2] or "", "x"
    )
    assert not any(key in str(name) for name in names for key in ("first", "second"))
    assert await namespace(isolated, "first") == names[0]


async def test_isolated_keys_look_at_drop_and_unpin_nothing_but_their_own(isolated: HttpWorld) -> None:
    isolated.running.cache = well
    own = await namespace(isolated, "second")
    headers = {"authorization": "Bearer second"}
    await isolated.http.get("/cache", headers=headers)
    await isolated.http.delete("/cache", headers=headers)
    await isolated.http.delete("/cache/pin/pin-1", headers=headers)
    await isolated.http.post("/cache/pin", json={"prompt": TEXT, "ttl_s": 9}, headers=headers)
    received = isolated.running
    assert [each.scope for each in received.of_kind(QueryCache)] == [own]
    assert [(each.scope, each.namespace) for each in received.of_kind(DropCache)] == [(own, None)]
    assert [each.scope for each in received.of_kind(UnpinPrefix)] == [own]
    assert [each.namespace for each in received.of_kind(PinPrefix)] == [own]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/cache"), ("DELETE", "/cache"), ("POST", "/cache/pin"), ("DELETE", "/cache/pin/1")],
)
async def test_the_cache_endpoints_need_the_key(isolated: HttpWorld, method: str, path: str) -> None:
    assert (await isolated.http.request(method, path)).status_code == 401


async def test_while_the_model_starts_the_cache_is_not_served() -> None:
    async with http_world(replica=False) as world:
        answer = await world.http.get("/cache")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_not_ready")


async def test_a_question_without_an_answer_is_given_up() -> None:
    asked: list[Message] = []
    questions = Questions()
    assert await questions.ask(lambda number: QueryCache(0, number, "", ""), asked.append, 0.01) is None
    questions.answer(CacheDropped(1, 0, 0))
    assert len(asked) == 1


async def test_ending_leases_answers_alike_for_own_foreign_and_unknown_keys() -> None:
    """The order has the caller's tenant, and the answer does not wait for what it ends."""
    async with http_world(api_keys=("first", "second")) as world:
        headers = {name: {"x-api-key": name} for name in ("first", "second")}
        body = {"prompt": "Hello", "cache_lease": {"ttl_s": 60, "key": "mine"}}
        assert (await world.http.post("/generate", json=body, headers=headers["first"])).status_code == 200
        owner = last_generate(world).tenant
        answers = []
        for caller, key in (("first", "mine"), ("second", "mine"), ("second", "none")):
            answer = await world.http.delete(f"/cache/lease/{key}", headers=headers[caller])
            answers.append((answer.status_code, answer.json() == {"key": key}))
        await world.until(lambda: len(world.running.of_kind(EndLease)) == 3)
        tenants = [order.tenant for order in world.running.of_kind(EndLease)]
    assert answers == [(202, True)] * 3
    assert tenants[0] == owner and tenants[1] == tenants[2] != owner


@pytest.mark.parametrize("path", BODIES)
async def test_every_api_takes_a_lease(plain: HttpWorld, path: str) -> None:
    lease = {"ttl_s": 60, "key": "program-1", "most": 8}
    answer = await plain.http.post(path, json={**BODIES[path], "cache_lease": lease})
    assert answer.status_code == 200, answer.text
    assert last_generate(plain).leases == [LeaseTerms("session", 60, "program-1", most=8)]
    refused = await plain.http.post(path, json={**BODIES[path], "cache_lease": {"ttl_s": 0}})
    assert refused.status_code == 400
    assert "cache_lease.ttl_s" in refused.text
