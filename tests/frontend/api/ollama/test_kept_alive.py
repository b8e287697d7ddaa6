"""`keep_alive` leases a conversation; 0 ends the lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.core.fields import MAX_TTL_S
from arbora.runtime.messages import EndLease, Generate, LeaseTerms, Refused
from http_world import last_generate
from ollama_world import OllamaWorld, ollama_world

pytestmark = pytest.mark.asyncio(loop_scope="module")
QUESTION: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
NEXT_TURN: Any = [*QUESTION, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Why?"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[OllamaWorld]:
    async with ollama_world() as world:
        world.says("Fine.")
        yield world


@pytest.fixture
def world(shared: OllamaWorld) -> OllamaWorld:
    shared.running.received.clear()
    return shared


def lease_of(world: OllamaWorld) -> LeaseTerms:
    [lease] = last_generate(world.http_world).leases
    return lease


async def ended(world: OllamaWorld) -> EndLease:
    await world.http_world.until(lambda: bool(world.running.of_kind(EndLease)))
    [order] = world.running.of_kind(EndLease)
    return order


@pytest.mark.parametrize(("keep_alive", "seconds"), [("5m", 300.0), (-1, MAX_TTL_S)])
async def test_the_prompt_and_the_reply_are_leased(
    world: OllamaWorld, keep_alive: Any, seconds: float
) -> None:
    await world.generate(prompt="Hello", keep_alive=keep_alive)
    assert (lease_of(world).kind, lease_of(world).ttl_s) == ("keep_alive", seconds)


@pytest.mark.parametrize("keep_alive", [None, 0])
async def test_without_a_time_nothing_is_leased(world: OllamaWorld, keep_alive: Any) -> None:
    await world.generate(prompt="Hello", keep_alive=keep_alive)
    assert last_generate(world.http_world).leases == []


async def test_each_turn_of_a_conversation_has_the_same_key(world: OllamaWorld) -> None:
    keys = []
    for messages in (QUESTION, NEXT_TURN, [*QUESTION[:1], {"role": "user", "content": "Bye"}]):
        await world.chat(messages=messages, keep_alive="1h")
        keys.append(lease_of(world).key)
    assert keys[0] == keys[1] != keys[2]


async def test_zero_ends_the_leases_of_the_conversation(world: OllamaWorld) -> None:
    await world.chat(messages=QUESTION, keep_alive="1h")
    key = lease_of(world).key
    await world.chat(messages=NEXT_TURN, keep_alive=0)
    assert await ended(world) == EndLease("", "", key)


@pytest.mark.parametrize("stream", [False, True])
async def test_leases_end_after_the_reply(world: OllamaWorld, stream: bool) -> None:
    world.running.gate.clear()
    asked = asyncio.create_task(world.post("/api/generate", prompt="Hello", keep_alive=0, stream=stream))
    await world.http_world.until(lambda: bool(world.running.of_kind(Generate)))
    assert not world.running.of_kind(EndLease)
    world.running.gate.set()
    assert (await asked).status_code == 200
    await ended(world)


async def test_a_refused_request_ends_no_lease(world: OllamaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.running, "refuse", lambda each: Refused(each.request, 429, "It is full."))
    assert (await world.post("/api/generate", prompt="Refused", keep_alive=0)).status_code == 429
    monkeypatch.undo()
    await world.generate(prompt="Served", keep_alive=0)
    await ended(world)
    assert len(world.running.of_kind(Generate)) == 2


@pytest.mark.parametrize("prompt", ["Hello", ""])
async def test_leases_end_in_the_namespace_of_the_salt_and_of_the_key_alone(prompt: str) -> None:
    async with ollama_world(api_keys=("first", "second"), isolate_keys=True) as world:
        world.says("Fine.")
        headers = {"authorization": "Bearer second"}
        ends = []
        for salt in ("a", "b"):
            body: dict[str, Any] = {"prompt": "Hello", "cache_salt": salt, "keep_alive": "1h"}
            http = world.http_world.http
            assert (await http.post("/api/generate", json=body, headers=headers)).status_code == 200
            taken = last_generate(world.http_world)
            body |= {"prompt": prompt, "keep_alive": 0}
            assert (await http.post("/api/generate", json=body, headers=headers)).status_code == 200
            ends.append(await ended(world))
            assert (ends[-1].namespace, ends[-1].tenant) == (taken.namespace, taken.tenant)
            world.running.received.clear()
        assert ends[0].namespace != ends[1].namespace
        assert ends[0].tenant == ends[1].tenant != ""


async def test_unloading_the_model_ends_all_leases_of_the_caller(world: OllamaWorld) -> None:
    await world.chat(messages=[], keep_alive=0)
    await world.generate(prompt="", keep_alive="0s")
    await world.http_world.until(lambda: len(world.running.of_kind(EndLease)) == 2)
    assert world.running.of_kind(EndLease) == [EndLease("", "", None, "keep_alive")] * 2
    await world.chat(messages=[], keep_alive="1h")
    assert len(world.running.of_kind(EndLease)) == 2
