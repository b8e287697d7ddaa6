"""A server that makes drafts gives the replies of one that makes none, and counts its drafts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from arbora.runtime.config import BUILTIN_MODEL
from served import Served, serve

FIELDS = ("--deterministic", "--max-running", "4", "--max-model-len", "1024", "--kv-memory", "12MiB")
SPECULATE = ("off", "6", "auto")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
LINES = " ".join(f"The lamp of house {number} is red." for number in range(6))
REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "seed": 3, "logprobs": 2},
    {"temperature": 1.0, "seed": 4, "frequency_penalty": 0.5, "min_tokens": 30, "logit_bias": {"70": 2}},
    {"temperature": 0, "stop": ["red"], "n": 2},
    {"temperature": 1.0, "seed": 5, "json_schema": SCHEMA},
    {"temperature": 0, "cache_salt": "own"},
    {"temperature": 0, "cache_prompt": False},
]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Served]]:
    """One without drafts, one that computes all, and one that chooses."""
    with ExitStack() as stack:
        started = (serve(BUILTIN_MODEL, *FIELDS, "--speculate", value) for value in SPECULATE)
        yield [stack.enter_context(server) for server in started]


def answer(server: Served, fields: dict[str, Any], prompt: str = LINES) -> Any:
    body = {"prompt": prompt, "max_tokens": 60, **fields}
    response = server.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_replies_are_those_without_drafts(servers: list[Served], number: int) -> None:
    for _ in range(2):  # the second time earlier replies are drafted from
        plain, *drafting = (answer(server, REQUESTS[number]) for server in servers)
        assert drafting == [plain, plain]


def test_drafts_are_counted_by_source_and_save_steps(servers: list[Served]) -> None:
    before = [server.metrics() for server in servers]
    for server in servers:
        for _ in range(2):
            answer(server, {"temperature": 0, "cache_salt": "counted", "ignore_eos": True}, LINES + " And")
    used = [
        {name: value - earlier.get(name, 0) for name, value in server.metrics().items()}
        for server, earlier in zip(servers, before, strict=True)
    ]
    plain, *drafting = used
    assert plain["arbora_drafted_tokens_total"] == 0
    for figures in drafting:
        assert 0 < figures["arbora_accepted_tokens_total"] <= figures["arbora_drafted_tokens_total"]
        assert figures["arbora_output_tokens_total"] == plain["arbora_output_tokens_total"] == 120
    assert drafting[0]["arbora_steps_total"] < plain["arbora_steps_total"]


def test_a_reply_tells_its_steps_and_drafts(servers: list[Served]) -> None:
    plain, drafting, _ = servers
    body = {"prompt": LINES + " And", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    assert "completion_tokens_details" not in plain.http.post("/v1/completions", json=body).json()["usage"]
    body |= {"cache_salt": "told", "n": 2}
    drafting.http.post("/v1/completions", json=body)
    before = drafting.metrics()
    details = drafting.http.post("/v1/completions", json=body).json()["usage"]["completion_tokens_details"]
    told = {
        "arbora_reply_steps_total": details["steps"],
        "arbora_drafted_tokens_total": details["drafted_tokens"],
        "arbora_accepted_tokens_total": details["accepted_tokens"],
    }
    assert {name: drafting.metrics()[name] - before[name] for name in told} == told
    assert 0 < details["accepted_tokens"] <= details["drafted_tokens"]
    assert details["steps"] + details["accepted_tokens"] >= 120


def test_a_request_limits_its_drafts(servers: list[Served]) -> None:
    _, drafting, _ = servers
    for limit in (0, 2):
        before = drafting.metrics()
        fields = {"temperature": 0, "cache_salt": f"limit {limit}", "ignore_eos": True, "speculate": limit}
        for _ in range(2):
            answer(drafting, fields)
        drafted, steps = (
            drafting.metrics()[name] - before[name]
            for name in ("arbora_drafted_tokens_total", "arbora_steps_total")
        )
        assert drafted <= limit * steps
        assert (drafted > 0) == (limit > 0)


def test_a_request_can_not_ask_for_more_drafts_than_there_are(servers: list[Served]) -> None:
    response = servers[0].http.post("/v1/completions", json={"prompt": LINES, "speculate": 16})
    assert response.status_code == 400
    assert "speculate is 16" in response.json()["error"]["message"]


def test_a_prediction_is_drafted_from_and_counted(servers: list[Served]) -> None:
    chat = {"messages": [{"role": "user", "content": LINES}], "temperature": 0, "max_tokens": 40}
    chat |= {"ignore_eos": True, "cache_prompt": False}
    plain = servers[0].http.post("/v1/chat/completions", json=chat).json()
    text = plain["choices"][0]["message"]["content"]
    for content in (text, [{"type": "text", "text": text}]):
        body = {**chat, "prediction": {"type": "content", "content": content}}
        without, with_drafts = (
            server.http.post("/v1/chat/completions", json=body).json() for server in servers[:2]
        )
        assert without["choices"] == with_drafts["choices"] == plain["choices"]
        details = with_drafts["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > 0
        assert details["rejected_prediction_tokens"] >= 0
        assert without["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
    assert "completion_tokens_details" not in plain["usage"]


def test_a_wrong_prediction_is_refused_with_its_field(servers: list[Served]) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}], "prediction": {"type": "text", "content": "b"}}
    response = servers[1].http.post("/v1/chat/completions", json=chat)
    assert response.status_code == 400
    assert "prediction" in response.json()["error"]["message"]
    assert response.json()["error"]["param"].startswith("prediction")


def test_dropped_caches_are_not_drafted_from(servers: list[Served]) -> None:
    drafting = servers[1]
    fields = {"temperature": 0, "cache_salt": "dropped", "ignore_eos": True}
    for drops in (False, True):
        answer(drafting, fields, "Nothing here repeats")
        if drops:
            assert drafting.http.delete("/cache").status_code == 200
        before = drafting.http.get("/metrics").text
        answer(drafting, fields, "Nothing here repeats")
        after = drafting.http.get("/metrics").text
        drafted = [_read(text, 'arbora_drafted_tokens_total{source="replies"}') for text in (before, after)]
        assert (drafted[1] > drafted[0]) == (not drops)


def _read(metrics: str, name: str) -> float:
    return next(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name))
