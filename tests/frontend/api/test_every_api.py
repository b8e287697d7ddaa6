"""What all APIs have in common: streams, failures, clients that leave, and refusals in the form of each."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from apis import APIS, Api, events_of
from arbora.frontend.http.body import MAX_BODY_BYTES
from arbora.runtime.messages import Abort
from fake_scheduler import long_turn
from http_world import HELLO, HttpWorld, http_world
from raw_http import asked

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "the cat sat on the mat"
ATTEMPTS = 10  # on a busy machine all tokens of a short reply may come in one event
WITHOUT_OPENING = [api for api in APIS if api.path != "/v1/responses"]
"""the APIs whose streams have no event before the first token"""
EACH = pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOOLS: Any = [{"type": "function", "function": {"name": "look"}}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[HttpWorld]:
    async with http_world(context_length=1024) as world:
        world.script = world.says(TEXT)
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def world(shared: HttpWorld) -> HttpWorld:
    """The same server for each test, once the requests of the last test have ended."""
    await shared.until(lambda: not shared.running.rows)
    shared.running.received.clear()
    return shared


@EACH
async def test_a_stream_has_the_text_in_pieces(
    world: HttpWorld, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.running, "after_step", long_turn)
    for _ in range(ATTEMPTS):
        answer = await world.http.post(api.path, json={**api.body, "stream": True})
        texts = [api.text_of(event) for event in events_of(answer.text)]
        assert "".join(texts) == TEXT
        if sum(map(bool, texts)) > 1:
            return
    pytest.fail("all tokens come in one event")


@EACH
async def test_a_stop_string_ends_a_stream_before_it(world: HttpWorld, api: Api) -> None:
    stops: dict[str, Any] = {
        "/v1/messages": {"stop_sequences": [" sat"]},
        "/api/chat": {"options": {"stop": [" sat"]}},
        "/api/generate": {"options": {"stop": [" sat"]}},
    }
    body = {**api.body, **stops.get(api.path, {"stop": [" sat"]}), "stream": True}
    answer = await world.http.post(api.path, json=body)
    assert "".join(api.text_of(event) for event in events_of(answer.text)) == "the cat"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *(
            (api.path, api.body) for api in APIS if api.path != "/v1/responses"
        ),  # response.created comes at once
        (CHAT, {"messages": HELLO, "n": 2}),
        (CHAT, {"messages": HELLO, "tools": TOOLS, "tool_choice": "required"}),
        (
            CHAT,
            {"messages": HELLO, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ),
        (COMPLETIONS, {"prompt": "Hello", "echo": True}),
        (COMPLETIONS, {"prompt": "Hello", "echo": True, "logprobs": 1}),
    ],
    ids=str,
)
async def test_no_event_leaves_before_the_first_token(world: HttpWorld, path: str, fields: Any) -> None:
    world.running.gate.clear()
    async with world.http.stream("POST", path, json={**fields, "stream": True}) as response:
        assert response.status_code == 200
        first = asyncio.ensure_future(anext(response.aiter_bytes()))
        await world.until(lambda: bool(world.running.rows))
        await asyncio.sleep(0.05)
        assert not first.done()
        world.running.gate.set()
        assert b"{" in await first


@EACH
async def test_a_client_that_leaves_ends_its_request(world: HttpWorld, api: Api) -> None:
    world.running.pauses = True
    try:
        async with world.http.stream("POST", api.path, json={**api.body, "stream": True}) as response:
            await anext(response.aiter_bytes())
        await world.until(lambda: bool(world.running.of_kind(Abort)))
    finally:
        world.running.pauses = False
        world.running.gate.set()


@pytest.mark.parametrize("is_begun", [False, True])
@pytest.mark.parametrize(
    "api", [api for api in APIS if api.path != "/v1/responses"], ids=lambda api: api.path
)
async def test_a_failure_is_the_last_event_of_a_stream_and_the_only_one_before_the_first_token(
    api: Api, is_begun: bool
) -> None:
    async with http_world() as world:
        world.running.pauses = True
        if not is_begun:
            world.running.gate.clear()
        async with world.http.stream("POST", api.path, json={**api.body, "stream": True}) as response:
            parts = response.aiter_text()
            text = await anext(parts) if is_begun else ""
            await world.until(lambda: bool(world.running.rows))
            await world.kill_replica()
            world.supervisor.give_up()
            text += "".join([part async for part in parts])
    *others, last = events_of(text)
    assert api.code_of(last) == ("model_died" if is_begun else "shutting_down")
    assert bool(others) == is_begun and "[DONE]" not in text


async def refusal(world: HttpWorld, path: str, problem: str) -> httpx.Response:
    match problem:
        case "invalid_json":
            return await world.http.post(path, content=b"{")
        case "method_not_allowed":
            return await world.http.put(path)
        case "body_too_large":
            return await world.http.post(path, content=b" " * (MAX_BODY_BYTES + 1))
        case "unsupported_media_type":
            return await world.http.post(path, content=b"{}", headers={"content-type": "text/plain"})
        case "origin_not_allowed":
            return await world.http.post(path, json={}, headers={"origin": "https://evil.example"})
        case _:
            return await world.http.post(path, json={}, headers={"host": "evil.example"})


@EACH
@pytest.mark.parametrize(
    ("problem", "status"),
    [
        ("invalid_json", 400),
        ("method_not_allowed", 405),
        ("body_too_large", 413),
        ("unsupported_media_type", 415),
        ("origin_not_allowed", 403),
        ("host_not_allowed", 403),
    ],
)
async def test_a_refusal_has_the_form_of_its_api(
    world: HttpWorld, api: Api, problem: str, status: int
) -> None:
    answer = await refusal(world, api.path, problem)
    assert (answer.status_code, api.code_of(answer.json())) == (status, problem)


@EACH
async def test_malformed_http_is_refused_in_the_form_of_its_api(world: HttpWorld, api: Api) -> None:
    request = f"POST {api.path}?beta=true HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5x\r\n\r\n"
    assert api.code_of(json.loads((await asked(world.url, request.encode())).body)) == "invalid_http"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def limited() -> AsyncIterator[HttpWorld]:
    """A server with a key and a short time limit."""
    async with http_world(api_keys=("secret",), request_timeout=0.3) as world:
        yield world


@EACH
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": "secret"}, 200),
        ({"authorization": "Bearer secret"}, 200),
    ],
    ids=str,
)
async def test_a_key_is_sent_in_either_header(
    limited: HttpWorld, api: Api, headers: dict[str, str], status: int
) -> None:
    answer = await limited.http.post(api.path, json={**api.body, "stream": False}, headers=headers)
    assert answer.status_code == status
    assert status == 200 or api.code_of(answer.json()) == "invalid_api_key"


@EACH
async def test_the_time_limit_holds(limited: HttpWorld, api: Api) -> None:
    limited.running.gate.clear()
    try:
        headers = {"authorization": "Bearer secret"}
        answer = await limited.http.post(api.path, json={**api.body, "stream": False}, headers=headers)
    finally:
        limited.running.gate.set()
    assert (answer.status_code, api.code_of(answer.json())) == (504, "deadline_exceeded")
    assert "limit of 0.3 seconds" in answer.text


@EACH
async def test_requests_are_logged_and_counted(caplog: pytest.LogCaptureFixture, api: Api) -> None:
    def lines() -> list[str]:
        found = [each.getMessage() for each in caplog.records if each.name.endswith("request_log")]
        return [each for each in found if api.path in each]

    caplog.set_level(logging.INFO)
    async with http_world(log_requests="text") as world:
        answer = await world.http.post(api.path, json={**api.body, "stream": False})
        await world.until(lambda: bool(lines()))
        metrics = (await world.http.get("/metrics")).text
    (line,) = lines()
    assert answer.headers["x-request-id"] in line and "finish=stop" in line and "prompt=" in line
    assert 'arbora_choices_finished_total{reason="stop"} 1.0' in metrics
