"""Adapters in every API: chosen as the model, listed, loaded and unloaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from arbora.frontend.core.prepare import cache_namespace
from arbora.runtime.messages import (
    Adapter,
    AdapterChanged,
    AdapterList,
    LoadAdapter,
    Message,
    QueryRefused,
    UnloadAdapter,
)
from http_world import HELLO, MODEL, HttpWorld, eventually, http_world, last_generate

pytestmark = pytest.mark.asyncio(loop_scope="module")
SQL = Adapter("sql", "/adapters/sql", "5" * 64)
ANTHROPIC = {"anthropic-version": "2023-06-01"}
FACES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/api/chat": {"messages": HELLO, "stream": False},
    "/api/generate": {"prompt": "Hello", "stream": False},
    "/generate": {"prompt": "Hello"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(max_loras=4) as world:
        world.running.send(AdapterList([SQL]))
        await eventually(lambda: "sql" in world.engine.adapters)
        yield world


async def order(world: HttpWorld, path: str, answer: Message | None, **body: Any) -> httpx.Response:
    """Posts an order to load or unload. The scheduler gives the answer, with the order's number."""
    before = len(world.running.received)
    posting = asyncio.create_task(world.http.post(path, json=body))
    if answer is not None:
        await eventually(lambda: len(world.running.received) > before)
        answer.query = world.running.received[-1].query  # type: ignore[attr-defined]
        world.running.send(answer)
    return await posting


@pytest.mark.parametrize("path", FACES)
async def test_a_request_names_its_adapter_as_the_model(world: HttpWorld, path: str) -> None:
    for name in ("sql", "sql:latest") if path.startswith("/api") else ("sql",):
        reply = await world.http.post(path, json={**FACES[path], "model": name, "cache_salt": "x"})
        sent = last_generate(world)
        assert sent.adapter == SQL.digest and sent.namespace == cache_namespace("", "x", SQL)
        assert reply.json().get("model", name) == name
    await world.http.post(path, json={**FACES[path], "model": MODEL, "cache_salt": "x"})
    assert (last_generate(world).adapter, last_generate(world).namespace) == ("", cache_namespace("", "x"))


@pytest.mark.parametrize("path", FACES)
async def test_an_unknown_adapter_is_not_found_and_the_known_ones_are_named(
    world: HttpWorld, path: str
) -> None:
    reply = await world.http.post(path, json={**FACES[path], "model": "other"})
    assert reply.status_code == 404 and all(name in reply.text for name in ("other", MODEL, "sql"))


async def test_namespaces_differ_by_adapter_and_not_by_its_name() -> None:
    same, changed = Adapter("other", "/x", SQL.digest), Adapter("sql", "/x", "6" * 64)
    names = [cache_namespace("", salt, adapter) for salt in (None, "x") for adapter in (None, SQL, changed)]
    assert len(set(names)) == 6
    assert cache_namespace("", "x", same) == cache_namespace("", "x", SQL)


async def test_adapters_are_listed_with_their_model_and_directory(world: HttpWorld) -> None:
    base, card = (await world.http.get("/v1/models")).json()["data"]
    assert (base["id"], base["root"], base["parent"]) == (MODEL, MODEL, None)
    assert (card["id"], card["root"], card["parent"]) == ("sql", "/adapters/sql", MODEL)
    assert (await world.http.get("/v1/models/sql")).json() == card
    anthropic = await world.http.get("/v1/models", headers=ANTHROPIC)
    assert [each["id"] for each in anthropic.json()["data"]] == [MODEL, "sql"]
    tags = await world.http.get("/api/tags")
    assert [each["name"] for each in tags.json()["models"]] == [f"{MODEL}:latest", "sql:latest"]


async def test_an_adapter_is_loaded_and_unloaded_as_in_vllm(world: HttpWorld, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    new = Adapter("new", str(tmp_path), "7" * 64)
    body = {"lora_name": "new", "lora_path": str(tmp_path), "load_inplace": True}
    reply = await order(world, "/v1/load_lora_adapter", AdapterChanged(0, new), **body)
    assert (reply.status_code, reply.text) == (200, "Success: LoRA adapter 'new' added successfully.")
    (sent,) = world.running.of_kind(LoadAdapter)
    assert (sent.name, sent.path, sent.replaces) == ("new", str(tmp_path), True)
    body = {"lora_name": "new", "lora_int_id": 3}
    reply = await order(world, "/v1/unload_lora_adapter", AdapterChanged(0, new), **body)
    assert (reply.status_code, reply.text) == (200, "Success: LoRA adapter 'new' removed successfully.")
    assert [each.name for each in world.running.of_kind(UnloadAdapter)] == ["new"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("load", {"lora_path": "/x"}, 400, "lora_name"),
        ("load", {"lora_name": "a"}, 400, "lora_path"),
        ("load", {"lora_name": " ", "lora_path": "/x"}, 400, "lora_name"),
        ("load", {"lora_name": MODEL, "lora_path": "/x"}, 400, "lora_name"),
        ("load", {"lora_name": "a", "lora_path": "/nowhere"}, 404, "lora_path"),
        ("load", {"lora_name": "a", "lora_path": "/" + "x" * 300}, 404, "lora_path"),
        ("load", {"lora_name": "a", "lora_path": "/x\0"}, 404, "lora_path"),
        ("unload", {}, 400, "lora_name"),
    ],
)
async def test_a_wrong_order_is_refused_by_field(
    world: HttpWorld, path: str, body: dict[str, str], status: int, param: str
) -> None:
    reply = await order(world, f"/v1/{path}_lora_adapter", None, **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)


async def test_a_server_without_places_says_so_whatever_the_path() -> None:
    async with http_world(replica=False) as world:
        for path in ("/nowhere", "/" + "x" * 300):
            body = {"lora_name": "a", "lora_path": path}
            reply = await world.http.post("/v1/load_lora_adapter", json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "no_adapter_places")


async def test_a_refusal_of_the_scheduler_is_passed_on(world: HttpWorld) -> None:
    refused = QueryRefused(0, 404, "The adapter 'x' is not loaded.", "lora_name", "adapter_not_found")
    reply = await order(world, "/v1/unload_lora_adapter", refused, lora_name="x")
    assert (reply.status_code, reply.json()["error"]["message"]) == (404, refused.message)


async def test_a_server_with_keys_asks_for_one() -> None:
    async with http_world(api_keys=["secret"]) as world:
        for path in ("load", "unload"):
            assert (await world.http.post(f"/v1/{path}_lora_adapter", json={})).status_code == 401


async def test_isolated_keys_can_not_change_the_adapters_of_all() -> None:
    async with http_world(api_keys=["one", "two"], isolate_keys=True) as world:
        body = {"lora_name": "a", "lora_path": "/x"}
        for path in ("load", "unload"):
            reply = await world.http.post(f"/v1/{path}_lora_adapter", json=body, headers={"x-api-key": "one"})
            assert reply.status_code == 403 and "--lora" in reply.text
