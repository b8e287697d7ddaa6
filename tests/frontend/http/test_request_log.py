"""The log of requests: one line each, with numbers, and without texts unless the operator asks."""

from __future__ import annotations

import json
import logging
import re

import pytest
from arbora.frontend.http.request_log import MAX_TOKENS
from arbora.runtime.api_keys import ApiKey, key_hash
from arbora.runtime.messages import Generate
from fake_scheduler import unpacked
from http_world import HttpWorld, http_world

HELLO = [{"role": "user", "content": "a very private question"}]


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.endswith("request_log")]


async def line(world: HttpWorld, caplog: pytest.LogCaptureFixture) -> str:
    """The line that is logged when a request has ended, after the client has the answer."""
    await world.until(lambda: bool(lines_of(caplog)))
    (only,) = lines_of(caplog)
    return only


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_is_logged_with_its_numbers_and_no_text(
    caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO)
    async with http_world(log_requests="text", api_keys=("the-secret",)) as world:
        headers = {"Authorization": "Bearer the-secret"}
        body = {"model": "tiny", "messages": HELLO, "stream": stream}
        response = await world.http.post("/v1/chat/completions", json=body, headers=headers)
        logged = await line(world, caplog)
    assert re.fullmatch(
        rf"POST /v1/chat/completions 200 {response.headers['x-request-id']} key=[0-9a-f]{{16}} prompt=\d+ "
        r"cached=\d+ output=\d+ first_token=\d\.\d+ finish=stop seconds=\d\.\d+",
        logged,
    )
    assert "secret" not in logged and "private" not in logged


async def test_a_refused_request_is_logged_with_its_status(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with http_world(log_requests="text") as world:
        answer = await world.http.post("/v1/chat/completions", json={"messages": []})
        assert re.fullmatch(
            rf"POST /v1/chat/completions 400 {answer.headers['x-request-id']} code=invalid_value seconds=.*",
            await line(world, caplog),
        )


async def test_a_request_without_its_key_is_logged_with_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with http_world(log_requests="text", api_keys=("the-secret",)) as world:
        id = (await world.http.get("/v1/models")).headers["x-request-id"]
        assert re.fullmatch(
            rf"GET /v1/models 401 {id} code=invalid_api_key seconds=.*", await line(world, caplog)
        )


async def test_a_stream_that_is_cut_by_the_shutdown_is_logged_with_its_tokens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    body = {"messages": HELLO, "stream": True}
    async with http_world(log_requests="text") as world:
        world.running.pauses = True
        async with world.http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for event in response.aiter_lines():
                if "choices" in event:
                    world.supervisor.drain()
                    world.supervisor.give_up()
        logged = await line(world, caplog)
    assert " prompt=" in logged and " output=1 " in logged
    assert " finish=error-503 code=shutting_down seconds=" in logged


async def test_a_json_line_has_the_numbers_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    key = ApiKey(name="ada", sha256=key_hash("the-secret"))
    async with http_world(log_requests="json", api_keys=[key]) as world:
        headers = {"Authorization": "Bearer the-secret"}
        response = await world.http.post("/v1/chat/completions", json={"messages": HELLO}, headers=headers)
        logged = json.loads(await line(world, caplog))
    usage = response.json()["usage"]
    assert logged["id"] == response.headers["x-request-id"]
    assert (logged["path"], logged["status"], logged["key"]) == ("/v1/chat/completions", 200, "ada")
    assert (logged["model"], logged["finish"]) == ("tiny", ["stop"])
    assert (logged["prompt_tokens"], logged["output_tokens"]) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    assert 0 < logged["first_token_s"] <= logged["total_s"] and logged["between_tokens_s"] >= 0
    assert "secret" not in str(logged) and "private" not in str(logged)


async def test_a_json_line_has_the_texts_only_if_the_operator_asks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with http_world(log_requests="json+texts", api_keys=("the-secret",)) as world:
        world.script = world.says("One.", "Two.")
        headers = {"Authorization": "Bearer the-secret"}
        body = {"messages": [{"role": "user", "content": "Count"}], "n": 2, "stream": True}
        await world.http.post("/v1/chat/completions", json=body, headers=headers)
        logged = json.loads(await line(world, caplog))
        assert logged["prompts"] == [world.text(unpacked(world.running.of_kind(Generate)[0].prompt))]
    assert "user\nCount<|im_end|>" in logged["prompts"][0]
    assert [text.partition("<")[0] for text in logged["replies"]] == ["One.", "Two."]
    assert "the-secret" not in str(logged)


async def test_no_text_ends_a_json_line(caplog: pytest.LogCaptureFixture) -> None:
    """Some readers end a line at Unicode's separators, and terminals act on the controls from U+0080 on."""
    caplog.set_level(logging.INFO)
    text = "one\u2028two\u2029three\x85four\x9bfive\x7f"
    async with http_world(log_requests="json+texts") as world:
        await world.http.post("/v1/completions", json={"prompt": text, "max_tokens": 1})
        logged = await line(world, caplog)
    assert logged.splitlines() == [logged] and logged.isprintable()
    assert json.loads(logged)["prompts"] == [text]


async def test_a_long_text_is_logged_without_its_middle(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with http_world(log_requests="json+texts", context_length=8192) as world:
        prompt = world.ids("the cat ") * (MAX_TOKENS // 2) + world.ids("the end")
        await world.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})
        (text,) = json.loads(await line(world, caplog))["prompts"]
        start, end = text.split(" […] ")
        assert start == world.text(prompt[: MAX_TOKENS // 2])
        assert end == world.text(prompt[-(MAX_TOKENS // 2) :])


async def test_the_texts_of_a_line_share_a_number_of_tokens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with http_world(log_requests="json+texts") as world:
        middle = world.ids("the cat sat on the mat")
        prompts = [[60 + each % 32, *middle, 60 + each // 32] for each in range(MAX_TOKENS // 2)]
        await world.http.post("/v1/completions", json={"prompt": prompts, "max_tokens": 1})
        logged = json.loads(await line(world, caplog))
        shown = [" […] ".join(map(world.text, ([first], [last]))) for first, *_, last in prompts]
    assert logged["prompts"] == shown
    assert len(logged["replies"]) == len(prompts)


async def test_a_refused_request_has_no_texts_in_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with http_world(log_requests="json+texts") as world:
        await world.http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": -1})
        logged = json.loads(await line(world, caplog))
    assert not logged.keys() & {"prompts", "replies"}


async def test_a_json_line_of_a_refusal_has_its_code(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with http_world(log_requests="json") as world:
        answer = await world.http.get("/nothing")
        logged = json.loads(await line(world, caplog))
    assert (logged["method"], logged["status"], logged["code"]) == ("GET", 404, "not_found")
    assert logged["id"] == answer.headers["x-request-id"]
    assert logged.keys() == {"time", "id", "method", "path", "status", "code", "total_s"}


async def test_nothing_is_logged_unless_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with http_world() as world:
        assert (await world.http.get("/health")).status_code == 200
        assert not lines_of(caplog)
