"""OpenAI's client: chats, completions, responses, structured outputs, tools and batches."""

from __future__ import annotations

import json
import time

import pytest
from openai import OpenAI
from people import ASK_WEATHER, EXTRACT, GREETING, MODEL, NAME, RESULT, WEATHER, Person
from recording import Recorded


@pytest.fixture(scope="module")
def client(v1: str) -> OpenAI:
    return OpenAI(base_url=v1, api_key="none")


def test_chat_and_stream(client: OpenAI) -> None:
    messages = [{"role": "user", "content": NAME}]
    reply = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    assert reply.choices[0].message.content == GREETING
    stream = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == GREETING


def test_completion(client: OpenAI) -> None:
    reply = client.completions.create(
        model=MODEL, prompt="Hello", max_tokens=3, extra_body={"choice": ["yes"]}
    )
    assert reply.choices[0].text == "yes"


def test_structured_output(client: OpenAI) -> None:
    messages = [{"role": "user", "content": EXTRACT}]
    reply = client.chat.completions.parse(
        model=MODEL, messages=messages, response_format=Person, temperature=0
    )
    assert reply.choices[0].message.parsed == Person(name="Ada", age=36)


def test_tool_call_and_its_result(recorded: Recorded) -> None:
    client = OpenAI(base_url=recorded.v1, api_key="none")
    messages = [{"role": "user", "content": ASK_WEATHER}]
    asked = {"model": MODEL, "messages": messages, "tools": [WEATHER], "temperature": 0}
    message = client.chat.completions.create(**asked, tool_choice="required").choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    answer = client.chat.completions.create(
        **asked, tool_choice="none", extra_body={"choice": ["It is sunny."]}
    )
    assert recorded.tool_results == [RESULT]
    assert answer.choices[0].message.content == "It is sunny."


def test_responses(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=NAME, temperature=0)
    assert first.output_text == GREETING
    second = client.responses.create(
        model=MODEL, input="What is my name?", previous_response_id=first.id, temperature=0
    )
    assert second.output_text == "Your name is Ada."
    parsed = client.responses.parse(model=MODEL, input=EXTRACT, text_format=Person, temperature=0)
    assert parsed.output_parsed == Person(name="Ada", age=36)
    with client.responses.stream(model=MODEL, input=NAME, temperature=0) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(texts) == GREETING


def test_batch(client: OpenAI) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": NAME}], "temperature": 0}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    end = time.monotonic() + 60
    while batch.status != "completed" and time.monotonic() < end:
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    result = json.loads(client.files.content(batch.output_file_id).text)
    assert result["response"]["body"]["choices"][0]["message"]["content"] == GREETING
