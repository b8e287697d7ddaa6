"""Paths besides the completions, and how refusals look to a client of a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import CONTEXT, HELLO, PATIENCE, Served, eventually, serve


def chat(served: Served, **fields: Any) -> Any:
    fields = {"model": served.model, "messages": HELLO, "max_tokens": 4, **fields}
    return served.client.chat.completions.create(**fields)


def test_the_model_is_listed_and_shown(served: Served) -> None:
    (listed,) = served.client.models.list().data
    shown = served.client.models.retrieve(listed.id)
    assert shown == listed
    assert (shown.object, shown.id) == ("model", served.model)
    assert isinstance(shown.created, int)
    with pytest.raises(openai.NotFoundError):
        served.client.models.retrieve("another")


@pytest.mark.parametrize("path", ["/health", "/ping", "/version", "/metrics"])
def test_operators_paths_answer(served: Served, path: str) -> None:
    assert served.http.get(path).status_code == 200


def test_metrics_are_in_prometheus_format_and_only_grow(served: Served) -> None:
    def counters() -> dict[tuple[str, str], float]:
        text = served.http.get("/metrics").text
        return {
            (sample.name, json.dumps(sample.labels)): sample.value
            for family in text_string_to_metric_families(text)
            if family.type in ("counter", "histogram")
            for sample in family.samples
            if not sample.name.endswith("_created")
        }

    before = counters()
    chat(served, extra_body={"ignore_eos": True})
    after = counters()
    assert all(after[key] >= value for key, value in before.items())

    def grown(name: str) -> float:
        return sum(value - before.get(key, 0) for key, value in after.items() if key[0] == name)

    assert grown("arbora_output_tokens_total") == 4
    assert grown("arbora_request_completion_tokens_total") == 4
    assert grown("arbora_choices_finished_total") == 1
    assert grown("arbora_time_to_first_token_seconds_count") == 1
    assert grown("arbora_inter_token_latency_seconds_count") == 3
    assert grown("arbora_request_duration_seconds_count") == 1
    prompt = grown("arbora_prompt_tokens_cached_total") + grown("arbora_prompt_tokens_computed_total")
    assert prompt == grown("arbora_request_prompt_tokens_total") > 0
    assert grown("arbora_steps_total") >= 4


@pytest.mark.parametrize("text", ["the cat sat", "héllo 😀 你好", " \n\t  x", "<|im_start|>user"])
def test_text_survives_tokenizing_and_detokenizing(served: Served, text: str) -> None:
    answer = served.http.post("/tokenize", json={"model": served.model, "prompt": text}).json()
    assert answer["count"] == len(answer["tokens"])
    back = served.http.post("/detokenize", json={"model": served.model, "tokens": answer["tokens"]})
    assert back.json() == {"prompt": text}


def test_a_conversation_tokenizes_to_the_prompt_of_its_completion(served: Served) -> None:
    answer = served.http.post("/tokenize", json={"messages": HELLO}).json()
    assert answer["count"] == chat(served).usage.prompt_tokens
    assert answer["max_model_len"] == CONTEXT


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias[5]"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"extra_body": {"messages": "hello"}}, "messages"),
        ({"extra_body": {"stream": "yes"}}, "stream"),
        ({"extra_body": {"min_tokens": 9}}, "min_tokens"),
        ({"extra_body": {"stop_token_ids": [-1]}}, "stop_token_ids"),
    ],
    ids=str,
)
def test_a_field_out_of_range_is_refused_by_name(served: Served, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(served, **fields)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.code
    assert caught.value.message


def test_a_part_that_is_an_image_is_refused(served: Served) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    with pytest.raises(openai.BadRequestError, match="image_url"):
        chat(served, messages=[{"role": "user", "content": [part]}])


def test_a_field_that_is_missing_is_named(served: Served) -> None:
    answer = served.http.post("/v1/chat/completions", json={"model": served.model})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"


@pytest.mark.parametrize("body", [b"{", b"[]", b"", b'{"model": "\xff"}'])
def test_a_body_that_is_not_a_json_object_is_refused(served: Served, body: bytes) -> None:
    answer = served.http.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}


def test_an_unknown_model_is_not_found(served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        chat(served, model="another")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


@pytest.mark.parametrize("stream", [False, True])
def test_more_than_the_context_is_refused_with_the_numbers(served: Served, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match=str(CONTEXT)) as caught:
        chat(served, max_tokens=CONTEXT + 1, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        chat(served, messages=[{"role": "user", "content": "the cat sat " * 4000}], stream=stream)
    assert caught.value.code == "context_length_exceeded"


def test_unknown_paths_and_methods_are_named(served: Served) -> None:
    lost, wrong = served.http.get("/v1/nothing"), served.http.get("/v1/completions")
    assert (lost.status_code, wrong.status_code) == (404, 405)
    assert lost.json()["error"]["message"]
    assert wrong.headers["allow"] == "POST"


def test_unknown_fields_are_ignored(served: Served) -> None:
    fields = {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    assert chat(served, parallel_tool_calls=False, extra_body={"whatever": 1}, **fields).choices


def test_a_body_that_is_too_large_is_refused(served: Served) -> None:
    body = b'{"model": "' + b"x" * (33 << 20) + b'"}'
    assert served.http.post("/v1/chat/completions", content=body).status_code == 413
    streamed = served.http.post("/v1/chat/completions", content=iter([body]))
    assert streamed.status_code == 413


def test_a_refused_request_leaves_the_connection_usable(served: Served) -> None:
    with httpx.Client(base_url=served.url) as http:
        for _ in range(3):
            assert http.post("/v1/chat/completions", content=b"{").status_code == 400
            body = {"model": served.model, "messages": HELLO, "max_tokens": 1}
            assert http.post("/v1/chat/completions", json=body).status_code == 200


@pytest.fixture(scope="module")
def guarded(roomy_model: Path) -> Any:
    with serve(
        roomy_model,
        "--kv-memory",
        "16MiB",
        "--api-key",
        "secret",
        "--api-key",
        "other",
        "--max-running",
        "1",
        "--max-waiting",
        "1",
        "--served-model-name",
        "mine",
        key="secret",
    ) as server:
        yield server


def test_a_server_with_keys_asks_for_one(guarded: Served) -> None:
    assert chat(guarded).model == "mine"
    with (
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        stranger.models.list()
    assert caught.value.code == "invalid_api_key"
    assert guarded.http.get("/health").status_code == 200


def test_too_many_waiting_requests_are_turned_away(guarded: Served) -> None:
    body = {"model": "mine", "prompt": "Hello", "max_tokens": 30_000, "ignore_eos": True, "stream": True}
    headers = {"Authorization": "Bearer other"}
    with (
        httpx.Client(base_url=guarded.url, headers=headers, timeout=PATIENCE) as http,
        http.stream("POST", "/v1/completions", json=body) as running,
    ):
        lines = running.iter_lines()
        assert next(lines).startswith("data: ")
        with http.stream("POST", "/v1/completions", json=body) as waiting:
            assert waiting.status_code == 200
            with (
                openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="other", max_retries=0) as same,
                pytest.raises(openai.RateLimitError) as caught,
            ):
                same.completions.create(model="mine", prompt="Hello")
    assert caught.value.code == "rate_limit_exceeded"
    eventually(lambda: guarded.is_quiet)
    assert chat(guarded).choices
