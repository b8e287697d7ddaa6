"""Anthropic's client asks the built-in model, on a server with all its processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import arbora
import pytest
from anthropic_world import turn_of
from claude_code import HEADERS, first_turn, next_turn
from served import PATIENCE, Served, eventually, serve

BUILTIN = Path(arbora.__file__).parent / "runtime/model/builtin"
HELLO: Any = [{"role": "user", "content": "Hello! My name is Ada."}]
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def builtin() -> Iterator[Served]:
    with serve(BUILTIN, "--kv-memory", "64MiB") as server:
        yield server


@pytest.fixture
def served(builtin: Served) -> Iterator[Served]:
    yield builtin
    eventually(lambda: builtin.is_quiet)


@pytest.fixture
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


def create(client: anthropic.Anthropic, served: Served, **fields: Any) -> Any:
    fields = {"model": served.model, "messages": HELLO, "max_tokens": 40, "extra_body": GREEDY, **fields}
    return client.messages.create(**fields)


def prompt_tokens(usage: Any) -> int:
    total: int = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    return total


def test_the_model_answers_and_remembers(client: anthropic.Anthropic, served: Served) -> None:
    first = create(client, served)
    assert (first.role, first.stop_reason) == ("assistant", "end_turn")
    turns = [*HELLO, turn_of(first), {"role": "user", "content": "What is my name?"}]
    assert "Ada" in create(client, served, messages=turns).content[0].text


def test_the_next_turn_finds_the_first_in_the_cache(client: anthropic.Anthropic, served: Served) -> None:
    salt = {**GREEDY, "cache_salt": "turns"}
    first = create(client, served, extra_body=salt)
    assert first.usage.cache_read_input_tokens == 0
    assert first.usage.cache_creation_input_tokens == prompt_tokens(first.usage)
    turns = [*HELLO, turn_of(first), {"role": "user", "content": "What is my name?"}]
    second = create(client, served, messages=turns, extra_body=salt)
    read = second.usage.cache_read_input_tokens
    assert read >= prompt_tokens(first.usage) + first.usage.output_tokens - 1


def test_no_tokens_at_all_fill_the_cache(client: anthropic.Anthropic, served: Served) -> None:
    salt = {**GREEDY, "cache_salt": "warm"}
    warmed = create(client, served, max_tokens=0, extra_body=salt)
    assert (warmed.content, warmed.stop_reason, warmed.usage.output_tokens) == ([], "max_tokens", 0)
    usage = create(client, served, extra_body=salt).usage
    assert usage.cache_read_input_tokens == prompt_tokens(warmed.usage) - 1


@pytest.mark.parametrize("forced", [True, False])
def test_claude_codes_requests_are_served(served: Served, forced: bool) -> None:
    """Two turns as it sends them: the calls of the first are answered in the second."""
    asked = first_turn(served.model, 1200)
    if forced:
        asked["tool_choice"] = {"type": "tool", "name": "mcp__clock__wait", "disable_parallel_tool_use": True}
    blocks, usage = streamed(served, asked)
    calls = [block for block in blocks if block["type"] == "tool_use"]
    assert [call["name"] for call in calls] == ["mcp__clock__wait"] * forced
    assert all(0 <= call["input"]["seconds"] <= 60 for call in calls)
    turns = next_turn(asked, blocks, {call["id"]: "a.py" for call in calls})
    turns.pop("tool_choice", None)
    _, then = streamed(served, turns)
    before = usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"]
    assert then["cache_read_input_tokens"] >= before


def streamed(served: Served, body: dict[str, Any]) -> tuple[list[Any], dict[str, int]]:
    """The blocks and the last usage of a stream, read without a client's help."""
    body = {**body, **GREEDY, "ignore_eos": False}
    answer = served.http.post("/v1/messages?beta=true", json=body, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    blocks: list[Any] = []
    inputs: dict[int, str] = {}
    usage: dict[str, int] = {}
    for event in answer.text.split("\n\n")[:-1]:
        data = json.loads(event.partition("data: ")[2])
        if data["type"] == "content_block_start":
            blocks.append(data["content_block"])
        elif data["type"] == "content_block_delta":
            block, delta = blocks[data["index"]], data["delta"]
            if delta["type"] == "input_json_delta":
                inputs[data["index"]] = inputs.get(data["index"], "") + delta["partial_json"]
            else:
                field = delta["type"].removesuffix("_delta")
                block[field] += delta[field]
        elif data["type"] == "message_delta":
            usage = data["usage"]
            assert data["delta"]["stop_reason"] in ("end_turn", "tool_use", "max_tokens")
    for index, text in inputs.items():
        blocks[index]["input"] = json.loads(text)
    return blocks, usage
