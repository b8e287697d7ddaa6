"""The time limit of a request: whole answers, streams, slow bodies and requests that end in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
from arbora.frontend.cli.main import build_parser, serve_config
from arbora.frontend.core.replica.generation import Generation
from arbora.frontend.http.time_limit import TimeLimit
from arbora.runtime.errors import ConfigError
from arbora.runtime.messages import Abort, CacheDropped, Generate, PinPrefix
from cache_answers import well
from http_world import eventually, http_world
from raw_http import asked, connection, request

BODY: Any = {"model": "tiny", "prompt": "the cat", "max_tokens": 50}
LONG_S = 600.0


class Limit(NamedTuple):
    """The limit of a generation that has begun. `end` does what happens at the limit."""

    end: Callable[[], None]
    timer: asyncio.TimerHandle


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[Limit]:
    """The limits of all generations, in order. A test with a long limit ends it itself, so that a slow
    machine can't end it too early."""
    begun: list[Limit] = []
    end_later = TimeLimit.end_later

    def recorded(limit: TimeLimit, generation: Generation) -> asyncio.TimerHandle:
        timer = end_later(limit, generation)
        assert timer is not None
        begun.append(Limit(partial(generation.end, limit._error()), timer))
        return timer

    monkeypatch.setattr(TimeLimit, "end_later", recorded)
    return begun


async def test_an_answer_that_takes_too_long_is_ended_with_status_504() -> None:
    async with http_world(request_timeout=0.3) as world:
        world.running.gate.clear()
        answer = await asked(world.url, request("POST", "/v1/completions", body=json.dumps(BODY).encode()))
        assert answer.refusal == (504, "deadline_exceeded")
        assert "this server's limit of 0.3 seconds" in answer.error["message"]
        assert world.engine.open_requests == 0


async def test_a_request_at_its_limit_is_aborted_and_not_repeated(limits: list[Limit]) -> None:
    async with http_world(request_timeout=LONG_S) as world:
        world.running.gate.clear()
        client = world.client.with_options(max_retries=3)
        asking = asyncio.create_task(client.completions.create(**BODY))
        await eventually(lambda: bool(world.running.of_kind(Generate)))
        limits[0].end()
        with pytest.raises(openai.InternalServerError, match="limit of 600 seconds"):
            await asking
        world.running.gate.set()
        await eventually(lambda: bool(world.running.of_kind(Abort)))
        assert len(world.running.of_kind(Generate)) == 1
        assert world.engine.open_requests == 0
        assert (await world.client.completions.create(**BODY)).choices[0].text


async def test_a_stream_at_its_limit_ends_with_an_error_event(limits: list[Limit]) -> None:
    async with http_world(request_timeout=LONG_S) as world:
        world.running.pauses = True  # after the first step
        body = {**BODY, "stream": True}
        async with world.http.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            lines = answer.aiter_lines()
            assert json.loads((await anext(lines)).removeprefix("data: "))["choices"]
            limits[0].end()
            events = [line.removeprefix("data: ") async for line in lines if line]
        assert json.loads(events[-1])["error"]["code"] == "deadline_exceeded"
        assert "[DONE]" not in events
        await eventually(lambda: world.engine.open_requests == 0)


async def test_the_time_of_the_body_counts() -> None:
    async with http_world(request_timeout=0.3) as world, connection(world.url) as raw:
        await raw.send(request("POST", "/v1/completions", body=json.dumps(BODY).encode())[:-5])
        assert (await raw.answer()).refusal == (504, "deadline_exceeded")
        assert not world.running.of_kind(Generate)


async def test_the_time_of_an_explanation_counts() -> None:
    async with http_world(request_timeout=0.3) as world:
        world.running.cache = lambda message: CacheDropped(message.query + 1, 0, 0)  # answers no question
        body = json.dumps({**BODY, "explain_cache": True}).encode()
        answer = await asked(world.url, request("POST", "/v1/completions", body=body))
        assert answer.refusal == (504, "deadline_exceeded")
        assert not world.running.of_kind(Generate)


async def test_a_pin_that_takes_too_long_is_ended_with_status_504() -> None:
    async with http_world(request_timeout=0.3) as world:
        world.running.cache = well
        world.running.gate.clear()
        body = json.dumps({"prompt": list(range(5, 25)), "ttl_s": 60}).encode()
        answer = await asked(world.url, request("POST", "/cache/pin", body=body))
        assert answer.refusal == (504, "deadline_exceeded")
        await eventually(lambda: bool(world.running.of_kind(Abort)))
        assert not world.running.of_kind(PinPrefix)


async def test_requests_that_end_in_time_have_no_limit_any_more(limits: list[Limit]) -> None:
    async with http_world(request_timeout=LONG_S) as world:
        for _ in range(3):
            assert (await world.client.completions.create(**BODY)).choices[0].text
        await eventually(lambda: all(limit.timer.cancelled() for limit in limits))
        assert len(limits) == 3
        assert not world.running.of_kind(Abort)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "5s", ""])
def test_a_limit_that_is_no_number_of_seconds_is_refused(tmp_path: Path, text: str) -> None:
    flags = vars(build_parser().parse_args(["serve", "--request-timeout", text]))
    with pytest.raises(ConfigError, match=r"--request-timeout.*: expected seconds between"):
        serve_config(flags, {})
