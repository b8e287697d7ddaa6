"""LiteLLM, by each of the APIs that it can speak to this server."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import litellm
import pytest
from people import ASK_WEATHER, EXTRACT, GREETING, MODEL, NAME, RESULT, WEATHER, Person
from recording import Recorded

litellm.telemetry = False
HELLO = [{"role": "user", "content": NAME}]
ROUTES = pytest.mark.parametrize("route", ["openai", "hosted_vllm", "anthropic", "ollama_chat"])


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """LiteLLM drops some streams before their end. If the garbage collector closes one while httpcore holds
    its lock, httpcore waits for itself."""
    yield
    gc.collect()


def options(url: str, route: str) -> dict[str, Any]:
    base = f"{url}/v1" if route in ("openai", "hosted_vllm") else url
    return {
        "model": f"{route}/{MODEL}",
        "api_base": base,
        "api_key": "none",
        "temperature": 0,
        "max_tokens": 100,
    }


@ROUTES
def test_chat_and_stream(url: str, route: str) -> None:
    reply = litellm.completion(messages=HELLO, **options(url, route))
    assert reply.choices[0].message.content == GREETING
    stream = litellm.completion(messages=HELLO, stream=True, **options(url, route))
    assert "".join(part.choices[0].delta.content or "" for part in stream) == GREETING


@pytest.mark.parametrize("route", ["openai", "hosted_vllm", "ollama_chat"])
def test_structured_output(url: str, route: str) -> None:
    messages = [{"role": "user", "content": EXTRACT}]
    reply = litellm.completion(messages=messages, response_format=Person, **options(url, route))
    assert Person.model_validate_json(reply.choices[0].message.content) == Person(name="Ada", age=36)


@pytest.mark.parametrize("route", ["openai", "hosted_vllm", "anthropic"])
def test_tool_call_and_its_result(recorded: Recorded, route: str) -> None:
    messages: list[Any] = [{"role": "user", "content": ASK_WEATHER}]
    fields = {**options(recorded.url, route), "tools": [WEATHER]}
    message = litellm.completion(messages=messages, tool_choice="required", **fields).choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    answer = litellm.completion(messages=messages, tool_choice="none", **fields)
    assert recorded.tool_results == [RESULT]
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_responses(url: str) -> None:
    fields = options(url, "openai")
    del fields["max_tokens"]
    reply = litellm.responses(input=NAME, **fields)
    assert reply.output[0].content[0].text == GREETING
