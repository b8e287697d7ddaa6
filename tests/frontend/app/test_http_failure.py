"""Clients that disconnect, replicas that die, servers that shut down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.runtime.messages import Abort, Generate, Output, Outputs, ReplyError
from fake_scheduler import packed
from http_world import MODEL, HttpWorld, eventually, http_world

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world() as world:
        yield world


async def read_until_content(lines: AsyncIterator[str]) -> None:
    async for line in lines:
        if line.startswith("data: ") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            return


async def test_a_stream_whose_client_goes_away_is_aborted(world: HttpWorld) -> None:
    world.running.gate.clear()
    async with world.http.stream("POST", CHAT, json={**BODY, "stream": True, "n": 2}) as response:
        assert response.status_code == 200
    await eventually(lambda: len(world.running.of_kind(Abort)) == 2)
    await eventually(lambda: world.engine.open_requests == 0)
    metrics = (await world.http.get("/metrics")).text
    assert 'arbora_choices_finished_total{reason="abort"} 2.0' in metrics


async def test_a_whole_answer_whose_client_goes_away_is_aborted(world: HttpWorld) -> None:
    world.running.gate.clear()
    request = asyncio.create_task(world.http.post(CHAT, json=BODY))
    await eventually(lambda: bool(world.running.of_kind(Generate)))
    request.cancel()
    await eventually(lambda: bool(world.running.of_kind(Abort)))
    await eventually(lambda: world.engine.open_requests == 0)


async def test_finished_requests_are_not_aborted(world: HttpWorld) -> None:
    await world.http.post(CHAT, json=BODY)
    await world.http.post(CHAT, json={**BODY, "stream": True})
    assert world.running.of_kind(Abort) == []
    assert world.engine.open_requests == 0


async def test_while_the_replica_is_down_nothing_is_served(world: HttpWorld) -> None:
    await world.kill_replica()
    for response in (await world.http.get("/health"), await world.http.post(CHAT, json=BODY)):
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert response.json()["error"]["type"] == "server_error"


async def test_before_the_first_replica_is_up_nothing_is_served() -> None:
    async with http_world(replica=False) as world:
        assert (await world.http.get("/health")).status_code == 503
        assert (await world.http.get("/metrics")).status_code == 200
        assert (await world.http.post(CHAT, json=BODY)).status_code == 503


async def test_a_request_that_has_sent_no_token_is_sent_again(world: HttpWorld) -> None:
    world.running.gate.clear()
    request = asyncio.create_task(world.http.post(CHAT, json=BODY))
    await eventually(lambda: bool(world.running.of_kind(Generate)))
    await world.kill_replica()
    await world.start_replica()
    response = await request
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == "Hello, how are you?"


async def test_tokens_of_the_dead_replica_are_forgotten(world: HttpWorld) -> None:
    world.script = world.says("the cat sat")
    first = world.running
    first.gate.clear()
    request = asyncio.create_task(world.http.post(CHAT, json=BODY))
    await eventually(lambda: bool(first.rows))
    (name,) = first.rows
    first.send(Outputs([Output(name, packed(world.ids("Hello,")))]))
    while "arbora_time_to_first_token_seconds_count 1.0" not in (await world.http.get("/metrics")).text:
        await asyncio.sleep(0.002)
    await world.kill_replica()
    await world.start_replica()
    answer = (await request).json()
    assert answer["choices"][0]["message"]["content"] == "the cat sat"
    assert answer["usage"]["completion_tokens"] == len(world.ids("the cat sat")) + 1


async def test_a_stream_that_has_sent_nothing_but_its_role_is_sent_again(world: HttpWorld) -> None:
    world.running.gate.clear()
    request = asyncio.create_task(world.http.post(CHAT, json={**BODY, "stream": True}))
    await eventually(lambda: bool(world.running.rows))
    await world.kill_replica()
    await world.start_replica()
    text = (await request).text
    assert text.count('"role":"assistant"') == 1
    assert text.endswith("data: [DONE]\n\n")


async def test_a_stream_that_has_sent_a_token_ends_with_an_error(world: HttpWorld) -> None:
    world.running.pauses = True
    async with world.http.stream("POST", CHAT, json={**BODY, "stream": True}) as response:
        lines = response.aiter_lines()
        await read_until_content(lines)
        await world.kill_replica()
        rest = [line async for line in lines if line]
    assert 'arbora_requests_failed_total{status="503"} 1.0' in (await world.http.get("/metrics")).text
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "model_died"
    assert "data: [DONE]" not in rest


async def test_a_second_death_ends_a_request(world: HttpWorld) -> None:
    world.running.gate.clear()
    request = asyncio.create_task(world.http.post(CHAT, json=BODY))
    for _ in range(2):
        await eventually(lambda: bool(world.running.of_kind(Generate)))
        await world.kill_replica()
        await world.start_replica(paused=True)
    response = await request
    assert (response.status_code, response.json()["error"]["code"]) == (503, "model_died")
    assert world.running.of_kind(Generate) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_the_model_ends_an_answer_and_is_counted(world: HttpWorld, stream: bool) -> None:
    world.running.gate.clear()
    request = asyncio.create_task(world.http.post(CHAT, json={**BODY, "stream": stream}))
    await eventually(lambda: bool(world.running.rows))
    (name,) = world.running.rows
    world.running.send(
        Outputs([Output(name, finish="error", error=ReplyError("The logits are not numbers."))])
    )
    response = await request
    assert response.status_code == (200 if stream else 500)
    last = response.text.rstrip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "The logits are not numbers."
    assert 'arbora_requests_failed_total{status="500"} 1.0' in (await world.http.get("/metrics")).text


async def test_an_error_in_one_choice_aborts_the_others(world: HttpWorld) -> None:
    world.running.gate.clear()
    request = asyncio.create_task(world.http.post(CHAT, json={**BODY, "n": 2}))
    await eventually(lambda: len(world.running.rows) == 2)
    name, other = world.running.rows
    world.running.send(Outputs([Output(name, finish="error", error=ReplyError("No."))]))
    assert (await request).status_code == 500
    await eventually(lambda: [abort.request for abort in world.running.of_kind(Abort)] == [other])


async def test_draining_finishes_open_requests_and_refuses_new_ones(world: HttpWorld) -> None:
    world.running.gate.clear()
    request = asyncio.create_task(world.http.post(CHAT, json=BODY))
    await eventually(lambda: bool(world.running.rows))
    world.supervisor.drain()
    await eventually(world.engine.drain_requested.is_set)
    refused = await world.http.post(CHAT, json=BODY)
    world.running.gate.set()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert (await request).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_open_at_the_end_of_the_drain_fail_and_are_aborted(
    world: HttpWorld, stream: bool
) -> None:
    world.running.gate.clear()
    begun = asyncio.Event()

    async def ask() -> tuple[int, str]:
        async with world.http.stream("POST", CHAT, json={**BODY, "stream": stream, "n": 2}) as response:
            begun.set()
            return response.status_code, (await response.aread()).decode()

    request = asyncio.create_task(ask())
    await eventually(lambda: len(world.running.rows) == 2)
    if stream:
        await begun.wait()
    world.supervisor.drain()
    world.supervisor.give_up()
    status, text = await request
    last = text.rstrip().split("\n\n")[-1]
    assert status == (200 if stream else 503)
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
    await eventually(lambda: len(world.running.of_kind(Abort)) == 2)
    assert 'arbora_requests_failed_total{status="503"} 1.0' in (await world.http.get("/metrics")).text
