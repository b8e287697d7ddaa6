"""The paths that generate text: a request in the form of each API, and where its answers have what."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from http_world import HELLO


class Api(NamedTuple):
    """`body` asks for a reply to "Hello". `text_of` returns an event's text, `code_of` an error's code."""

    path: str
    body: dict[str, Any]
    text_of: Callable[[Any], str]
    code_of: Callable[[Any], str]


def openai_code(answer: Any) -> str:
    code: str = answer["error"]["code"]
    return code


def anthropic_code(answer: Any) -> str:
    assert answer["type"] == "error"
    code: str = answer["error"]["details"]["error_code"]
    return code


def ollama_code(answer: Any) -> str:
    assert isinstance(answer["error"], str)
    code: str = answer["code"]
    return code


def chat_text(event: Any) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def completion_text(event: Any) -> str:
    return "".join(choice["text"] for choice in event["choices"])


def response_text(event: Any) -> str:
    return event["delta"] if event["type"] == "response.output_text.delta" else ""


def message_text(event: Any) -> str:
    return event["delta"]["text"] if event["type"] == "content_block_delta" else ""


APIS = [
    Api("/v1/chat/completions", {"messages": HELLO}, chat_text, openai_code),
    Api("/v1/completions", {"prompt": "Hello"}, completion_text, openai_code),
    Api("/v1/responses", {"input": "Hello"}, response_text, openai_code),
    Api("/v1/messages", {"messages": HELLO, "max_tokens": 100}, message_text, anthropic_code),
    Api("/api/chat", {"messages": HELLO}, lambda event: event["message"]["content"], ollama_code),
    Api("/api/generate", {"prompt": "Hello"}, lambda event: event["response"], ollama_code),
    Api("/generate", {"prompt": "Hello"}, lambda event: event.get("text", ""), openai_code),
]


def events_of(stream: str) -> list[Any]:
    """The objects of a stream of server-sent events or of lines of JSON."""
    lines = (line.removeprefix("data: ") for line in stream.splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]
