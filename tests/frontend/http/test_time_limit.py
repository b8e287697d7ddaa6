"""The time limit of a request: whole answers, streams, slow bodies and requests that end in time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from arbora.frontend.cli import build_parser, serve_config
from arbora.runtime.errors import ConfigError
from arbora.runtime.messages import Abort, Generate
from http_world import eventually, http_world
from raw_http import asked, connection, request

BODY: Any = {"model": "tiny", "prompt": "the cat", "max_tokens": 50}


async def test_an_answer_that_takes_too_long_is_cancelled_with_status_504() -> None:
    async with http_world(request_timeout=0.3) as world:
        world.running.gate.clear()
        answer = await asked(world.url, request("POST", "/v1/completions", body=json.dumps(BODY).encode()))
        assert answer.refusal == (504, "deadline_exceeded")
        assert "this server's limit of 0.3 seconds" in answer.error["message"]
        world.running.gate.set()
        await eventually(lambda: bool(world.running.of_kind(Abort)))
        assert world.engine.open_choices == 0
        assert (await world.client.completions.create(**BODY)).choices[0].text


async def test_clients_do_not_repeat_a_request_that_took_too_long() -> None:
    async with http_world(request_timeout=0.3) as world:
        world.running.gate.clear()
        with pytest.raises(openai.InternalServerError, match=r"limit of 0\.3 seconds"):
            await world.client.with_options(max_retries=3).completions.create(**BODY)
        world.running.gate.set()
        await eventually(lambda: bool(world.running.of_kind(Abort)))
        assert len(world.running.of_kind(Generate)) == 1


async def test_a_stream_that_takes_too_long_ends_with_an_error_event() -> None:
    async with http_world(request_timeout=0.5) as world:
        world.running.pauses = True  # after the first step
        body = json.dumps({**BODY, "stream": True}).encode()
        async with connection(world.url) as raw:
            await raw.send(request("POST", "/v1/completions", body=body))
            answer = await raw.answer()
            events = answer.body.decode().strip().split("\n\n")
            assert answer.status == 200
            assert len(events) >= 2 and json.loads(events[0].removeprefix("data: "))["choices"]
            assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
            assert "[DONE]" not in answer.body.decode()
        await eventually(lambda: world.engine.open_choices == 0)


async def test_the_time_of_the_body_counts() -> None:
    async with http_world(request_timeout=0.3) as world, connection(world.url) as raw:
        await raw.send(request("POST", "/v1/completions", body=json.dumps(BODY).encode())[:-5])
        assert (await raw.answer()).refusal == (504, "deadline_exceeded")
        assert not world.running.of_kind(Generate)


async def test_requests_that_end_in_time_are_served_also_later() -> None:
    async with http_world(request_timeout=0.5) as world:
        for _ in range(3):
            assert (await world.client.completions.create(**BODY)).choices[0].text
            await asyncio.sleep(0.3)
        assert not world.running.of_kind(Abort)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "5s", ""])
def test_a_limit_that_is_no_number_of_seconds_is_refused(tmp_path: Path, text: str) -> None:
    flags = vars(build_parser().parse_args(["serve", "--request-timeout", text]))
    with pytest.raises(ConfigError, match=r"--request-timeout.*: expected seconds between"):
        serve_config(flags, {})
