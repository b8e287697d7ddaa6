"""Ollama's client."""

from __future__ import annotations

import pytest
from ollama import Client
from people import EXTRACT, GREETING, MODEL, NAME, Person

COLD = {"temperature": 0}


@pytest.fixture(scope="module")
def client(url: str) -> Client:
    return Client(host=url)


def test_chat_and_stream(client: Client) -> None:
    messages = [{"role": "user", "content": NAME}]
    assert client.chat(MODEL, messages, options=COLD).message.content == GREETING
    parts = client.chat(MODEL, messages, options=COLD, stream=True)
    assert "".join(part.message.content for part in parts) == GREETING


def test_structured_output(client: Client) -> None:
    messages = [{"role": "user", "content": EXTRACT}]
    reply = client.chat(MODEL, messages, format=Person.model_json_schema(), options=COLD)
    assert Person.model_validate_json(reply.message.content) == Person(name="Ada", age=36)
