"""The log of requests: one line each, with numbers, and without texts unless the operator asks."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from dataclasses import replace
from typing import Any

import pytest
from arbora.frontend.http import request_log
from arbora.frontend.http.outcome import Outcome
from arbora.frontend.http.request_log import MAX_LINES, MAX_TOKENS, RequestLog, format_progress
from arbora.frontend.http.server.limits import Limits
from arbora.runtime.api_keys import ApiKey, key_hash
from arbora.runtime.messages import Generate, OpenRequest, RequestList
from fake_scheduler import unpacked
from http_world import HttpWorld, http_world
from raw_http import asked, request

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
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
        rf"{TIME} POST /v1/chat/completions 200 {response.headers['x-request-id']} key=[0-9a-f]{{16}} "
        r"prompt=\d+ cached=\d+ output=\d+ first_token=\d\.\d+ tokens_per_s=\d+\.\d finish=stop "
        r"seconds=\d\.\d+",
        logged,
    )
    assert "secret" not in logged and "private" not in logged


async def test_a_refused_request_is_logged_with_its_status(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with http_world(log_requests="text") as world:
        answer = await world.http.post("/v1/chat/completions", json={"messages": []})
        assert re.fullmatch(
            rf"{TIME} POST /v1/chat/completions 400 {answer.headers['x-request-id']} seconds=\d\.\d+ "
            r"code=invalid_value reason=messages must .*",
            await line(world, caplog),
        )


async def test_a_request_without_its_key_is_logged_with_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with http_world(log_requests="text", api_keys=("the-secret",)) as world:
        id = (await world.http.get("/v1/models")).headers["x-request-id"]
        logged = await line(world, caplog)
    assert re.match(rf"{TIME} GET /v1/models 401 {id} seconds=", logged)
    assert " code=invalid_api_key reason=This request has no API key." in logged


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
    assert " finish=error-503 seconds=" in logged and " code=shutting_down reason=" in logged


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
    assert logged["reason"].startswith("There is no /nothing on this server.")
    assert logged.keys() == {"time", "id", "method", "path", "status", "code", "reason", "total_s"}


async def test_no_request_is_logged_if_the_log_is_off_or_quiet(caplog: pytest.LogCaptureFixture) -> None:
    for level, form in ((logging.INFO, None), (logging.WARNING, "text")):
        caplog.set_level(level)
        async with http_world(log_requests=form) as world:
            assert (await world.http.get("/v1/models")).status_code == 200
            await world.http.get("/nothing")
    assert not lines_of(caplog)


async def test_requests_that_only_look_at_the_server_are_logged_if_they_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with http_world() as world:
        for path in ("/", "/health", "/health/live", "/ping", "/version", "/metrics", "/openapi.json"):
            assert (await world.http.get(path)).status_code == 200, path
        assert (await world.http.head("/")).status_code == 200
        await world.http.get("/page/1/missing.js")
        logged = await line(world, caplog)
    assert " GET /page/1/missing.js 404 " in logged


def test_only_reading_the_cache_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = RequestLog("text", "tiny")
    looks = [("GET", "/cache"), ("GET", "/cache/tree"), ("POST", "/cache/explain"), ("POST", "/detokenize")]
    for method, path in (*looks, ("DELETE", "/cache"), ("GET", "/caches")):
        log.add({}, replace(outcome_of(200), method=method, path=path))
    log.add({}, replace(outcome_of(400), path="/tokenize"))
    assert [logged.split(" ")[1:3] for logged in lines_of(caplog)] == [
        ["DELETE", "/cache"],
        ["GET", "/caches"],
        ["POST", "/tokenize"],
    ]


async def test_the_health_is_logged_while_it_is_bad(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with http_world(replica=False) as world:
        assert (await world.http.get("/health")).status_code == 503
        logged = await line(world, caplog)
    assert " GET /health 503 " in logged and " code=model_not_ready reason=The model is starting" in logged


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_is_told_of(caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    caplog.set_level(logging.INFO)
    async with http_world() as world:
        world.running.pauses = True
        body = {"messages": HELLO, "stream": stream}
        sending = world.http.stream("POST", "/v1/chat/completions", json=body)
        if stream:
            async with sending as response:
                assert response.status_code == 200
        else:
            waiting = asyncio.create_task(sending.__aenter__())
            await world.until(lambda: bool(world.running.of_kind(Generate)))
            waiting.cancel()
        logged = await line(world, caplog)
    status = "200" if stream else "499"
    assert re.match(rf"{TIME} POST /v1/chat/completions {status} \S+ ", logged)
    assert " finish=abort client=gone seconds=" in logged


async def test_a_line_names_the_model_if_there_are_several_names(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with http_world(more_model_names=("other",)) as world:
        for body in ({"model": "other"}, {}, {"model": "no such model"}):
            await world.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, **body})
        await world.until(lambda: len(lines_of(caplog)) == 3)
    other, default, unknown = lines_of(caplog)
    assert " model=other prompt=" in other and " model=tiny prompt=" in default
    assert " model=" not in unknown and " code=model_not_found reason=" in unknown
    assert "no such model" in unknown


async def test_no_client_forges_a_line_or_makes_it_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    field = "x\narbora: 2026-01-01T00:00:00Z GET / 200 \x1b[2J\u2028\u202e" + 300 * "y"
    async with http_world() as world:
        body = {"messages": HELLO, "response_format": {"type": "text", field: "z"}}
        assert (await world.http.post("/v1/chat/completions", json=body)).status_code == 400
        await world.http.get("/no%0Apath%20200%20id%1B")
        await world.http.get("/none", headers={"x-request-id": "key=admin"})
        await world.until(lambda: len(lines_of(caplog)) == 3)
    for logged in lines_of(caplog):
        assert logged.isprintable() and logged.splitlines() == [logged] and len(logged) < 500
    first, second, third = lines_of(caplog)
    assert " key=" not in third
    assert " reason=response_format.x\\narbora: " in first
    assert " GET /no\\npath%20200%20id\\x1b 404 " in second


PRIVATE = "Zebra's \"plan"


@pytest.mark.parametrize(
    "body",
    [
        {"messages": PRIVATE},
        {"messages": [PRIVATE]},
        {"messages": [{"role": PRIVATE, "content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": [PRIVATE]}]}]},
        {"messages": HELLO, "max_tokens": PRIVATE},
        {"messages": HELLO, "max_tokens": 60 * "a" + PRIVATE},
        {"messages": HELLO, "stop": 9 * [PRIVATE], "n": PRIVATE},
        {"messages": HELLO, "tools": [PRIVATE]},
        {"messages": HELLO, "response_format": PRIVATE},
        {"messages": HELLO, "modalities": [PRIVATE]},
        [PRIVATE],
        PRIVATE,
    ],
)
async def test_the_reason_has_none_of_the_request_s_texts(
    caplog: pytest.LogCaptureFixture, body: object
) -> None:
    caplog.set_level(logging.INFO)
    async with http_world() as world:
        assert (await world.http.post("/v1/chat/completions", json=body)).status_code == 400
        logged = await line(world, caplog)
    assert " reason=" in logged and "Zebra" not in logged and "plan" not in logged


async def test_a_request_that_is_no_http_has_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with http_world() as world:
        answer = await asked(world.url, b"GET /v1/models HTTP/1.1\r\nHost : localhost\r\n\r\n")
        logged = await line(world, caplog)
    assert answer.status == 400
    id = answer.headers["x-request-id"]
    assert re.match(rf"{TIME} GET /v1/models 400 {id} seconds=0\.000 code=invalid_http reason=", logged)


async def test_a_body_that_does_not_arrive_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    limits = Limits(body_seconds=0.2)
    async with http_world(limits=limits) as world:
        head = request("POST", "/v1/completions", "Content-Type: application/json", "Content-Length: 99")
        assert (await asked(world.url, head + b"{")).status == 408
        logged = await line(world, caplog)
    assert " 408 " in logged and " code=request_timeout reason=The request's body did not arrive" in logged


def outcome_of(status: int) -> Outcome:
    return Outcome("POST", "/v1/completions", "id", status, None, None, 1e9, 0.5)


async def test_beyond_some_lines_a_second_requests_are_only_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now = 100.0
    log = RequestLog("text", "tiny", clock=lambda: now)
    for _ in range(MAX_LINES):
        log.write(outcome_of(200))
    for status in (*410 * (200,), 429, 429):
        log.write(outcome_of(status))
    assert len(lines_of(caplog)) == MAX_LINES
    now = 101.0
    log.write(outcome_of(200))
    *_, counted, last = lines_of(caplog)
    assert re.fullmatch(rf"{TIME} and 412 more requests: 410 × 200, 2 × 429", counted)
    assert last.startswith("2001-09-09T01:46:40Z POST /v1/completions 200 id ")
    assert len(lines_of(caplog)) == MAX_LINES + 2


async def test_the_count_comes_at_the_end_of_its_second_if_no_request_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now = 100.0
    log = RequestLog("text", "tiny", clock=lambda: now)
    log.write(outcome_of(200))
    now = 100.95
    for _ in range(MAX_LINES):
        log.write(outcome_of(200))
    await asyncio.sleep(0.2)
    assert lines_of(caplog)[-1].endswith("and 1 more requests: 1 × 200")


async def test_while_a_request_runs_for_long_a_line_says_how_far_it_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(request_log, "PROGRESS_S", 0.05)
    async with http_world(log_requests="text") as world:
        assert world.http_service.log is not None
        world.running.gate.clear()
        watching = asyncio.create_task(world.http_service.log.watch(world.engine))
        await asyncio.sleep(0.2)
        assert not lines_of(caplog)  # nothing is open
        asking = asyncio.create_task(world.http.post("/v1/completions", json={"prompt": "Hello"}))
        await world.until(lambda: bool(lines_of(caplog)))
        watching.cancel()
        asking.cancel()
    assert re.fullmatch(
        rf"{TIME} open cmpl-[0-9a-f]+-0 has 0 of \d+ prompt tokens computed or cached after 1 s",
        lines_of(caplog)[0],
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"state": "waiting"}, "waits to be started"),
        ({"state": "compiling"}, "waits for its constraint"),
        ({"ready_tokens": 1536}, "has 1,536 of 3,019 prompt tokens computed or cached"),
        ({"ready_tokens": 3019, "output_tokens": 1200, "state": "decode"}, "has 1,200 output tokens"),
    ],
)
def test_the_state_of_the_oldest_request_is_named(changed: dict[str, Any], said: str) -> None:
    fields: dict[str, Any] = {"state": "prefill", "ready_tokens": 0, "output_tokens": 0, "cached_tokens": 0}
    oldest = OpenRequest(id="cmpl-1-0", age_s=10.2, prompt_tokens=3019, **(fields | changed))
    assert format_progress(RequestList(0, 1, [oldest])) == f"open cmpl-1-0 {said} after 10 s"
    assert format_progress(RequestList(0, 3, [oldest])).endswith(" after 10 s; 2 more open")


async def test_json_lines_are_not_limited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = RequestLog("json", "tiny")
    for _ in range(3 * MAX_LINES):
        log.write(outcome_of(200))
    assert len(lines_of(caplog)) == 3 * MAX_LINES
