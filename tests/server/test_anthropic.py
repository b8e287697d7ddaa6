"""Anthropic's client asks the built-in model, on a server with all its processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import arbora
import jsonschema
import openai
import pydantic
import pytest
from anthropic_world import turn_of
from claude_code import HEADERS, first_turn, next_turn
from served import PATIENCE, Served, eventually, serve, text_of

BUILTIN = Path(arbora.__file__).parent / "runtime/model/builtin"
HELLO: Any = [{"role": "user", "content": "Hello! My name is Ada."}]
PERSON: Any = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {
        "name": name,
        "description": f"Tells {name}.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}},
            "required": ["city"],
        },
    }
    for name in ("weather", "time")
]
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


def test_a_stream_adds_up_to_the_whole_message(client: anthropic.Anthropic, served: Served) -> None:
    whole = create(client, served)
    fields: Any = {"model": served.model, "messages": HELLO, "max_tokens": 40, "extra_body": GREEDY}
    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].to_dict()["text"] == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


CONVERSATIONS: Any = {
    "one message": (HELLO, HELLO, {}, {}),
    "system, blocks and turns": (
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hi."}, {"type": "text", "text": "I am Bo."}],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "Hello, Bo."}]},
            {"role": "user", "content": "What is my name?"},
        ],
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi.\nI am Bo."},
            {"role": "assistant", "content": "Hello, Bo."},
            {"role": "user", "content": "What is my name?"},
        ],
        {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
        {},
    ),
    "a loop of tools": (
        [
            *HELLO,
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sun."}],
            },
        ],
        [
            *HELLO,
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "Sun."},
        ],
        {"tools": TOOLS},
        {
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": tool["name"],
                        "description": tool["description"],
                        "parameters": tool["input_schema"],
                    },
                }
                for tool in TOOLS
            ]
        },
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_both_apis_give_the_same_tokens_for_the_same_conversation(
    client: anthropic.Anthropic, served: Served, name: str
) -> None:
    messages, chat, fields, chat_fields = CONVERSATIONS[name]
    mine = create(client, served, messages=messages, **fields)
    theirs = served.client.chat.completions.create(
        model=served.model, messages=chat, max_tokens=40, temperature=0, **chat_fields
    )
    assert "".join(block.text for block in mine.content if block.type == "text") == (text_of(theirs) or "")
    assert mine.usage.output_tokens == theirs.usage.completion_tokens
    assert prompt_tokens(mine.usage) == theirs.usage.prompt_tokens
    found = theirs.usage.prompt_tokens_details.cached_tokens
    assert found == theirs.usage.prompt_tokens - 1, "the tree has the whole prompt but its last token"


def test_the_next_turn_finds_the_first_in_the_cache(client: anthropic.Anthropic, served: Served) -> None:
    salt = {**GREEDY, "cache_salt": "turns"}
    first = create(client, served, extra_body=salt)
    assert first.usage.cache_read_input_tokens == 0
    assert first.usage.cache_creation_input_tokens == prompt_tokens(first.usage)
    turns = [*HELLO, turn_of(first), {"role": "user", "content": "What is my name?"}]
    second = create(client, served, messages=turns, extra_body=salt)
    read = second.usage.cache_read_input_tokens
    assert read >= prompt_tokens(first.usage) + first.usage.output_tokens - 1


def test_the_counted_tokens_are_those_of_the_usage(client: anthropic.Anthropic, served: Served) -> None:
    fields: Any = {"messages": HELLO, "system": "Be brief.", "tools": TOOLS}
    counted = client.messages.count_tokens(model=served.model, **fields)
    assert counted.input_tokens == prompt_tokens(create(client, served, **fields).usage)


def test_no_tokens_at_all_fill_the_cache(client: anthropic.Anthropic, served: Served) -> None:
    salt = {**GREEDY, "cache_salt": "warm"}
    warmed = create(client, served, max_tokens=0, extra_body=salt)
    assert (warmed.content, warmed.stop_reason, warmed.usage.output_tokens) == ([], "max_tokens", 0)
    usage = create(client, served, extra_body=salt).usage
    assert usage.cache_read_input_tokens == prompt_tokens(warmed.usage) - 1


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "time"}], ids=str)
def test_a_forced_call_fits_its_schema_and_its_result_is_read(
    client: anthropic.Anthropic, served: Served, choice: Any
) -> None:
    first = create(client, served, tools=TOOLS, tool_choice=choice, max_tokens=200)
    assert first.stop_reason == "tool_use"
    calls = [block for block in first.content if block.type == "tool_use"]
    assert len(calls) == len(first.content) > 0
    for call in calls:
        assert call.name == choice.get("name", call.name)
        jsonschema.validate(call.input, TOOLS[0]["input_schema"])
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "Sun."} for call in calls]
    turns = [*HELLO, turn_of(first), {"role": "user", "content": results}]
    second = create(client, served, messages=turns, tools=TOOLS)
    assert second.stop_reason in ("end_turn", "tool_use", "max_tokens")
    assert second.usage.cache_read_input_tokens >= prompt_tokens(first.usage)


def test_one_call_is_made_if_parallel_calls_are_disabled(client: anthropic.Anthropic, served: Served) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    message = create(client, served, tools=TOOLS, tool_choice=choice, max_tokens=200)
    assert [block.type for block in message.content] == ["tool_use"]


def test_a_streamed_call_is_the_whole_one(client: anthropic.Anthropic, served: Served) -> None:
    fields: Any = {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "weather"}}
    whole = create(client, served, **fields, max_tokens=200)
    asked: Any = {"model": served.model, "messages": HELLO, "max_tokens": 200, "extra_body": GREEDY}
    with client.messages.stream(**asked, **fields) as stream:
        final = stream.get_final_message()
    assert [block.input for block in final.content] == [block.input for block in whole.content]


def test_tools_may_be_left_uncalled(client: anthropic.Anthropic, served: Served) -> None:
    message = create(client, served, tools=TOOLS, tool_choice={"type": "auto"})
    called = any(block.type == "tool_use" for block in message.content)
    assert message.stop_reason in (("tool_use",) if called else ("end_turn", "max_tokens"))


def test_structured_output_fits_its_schema(client: anthropic.Anthropic, served: Served) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": PERSON}}
    message = create(client, served, output_config=config, max_tokens=100)
    jsonschema.validate(json.loads(message.content[0].text), PERSON)


def test_the_client_parses_a_reply_of_its_type(client: anthropic.Anthropic, served: Served) -> None:
    class Person(pydantic.BaseModel):
        name: str
        age: int

    text = "Extract the person: Ada is 36 years old."
    message = client.messages.parse(
        model=served.model,
        max_tokens=100,
        messages=[{"role": "user", "content": text}],
        output_format=Person,
        extra_body=GREEDY,
    )
    assert isinstance(message.parsed_output, Person)


def test_a_stop_sequence_ends_the_reply(client: anthropic.Anthropic, served: Served) -> None:
    whole = create(client, served).content[0].text
    stop = whole[5:9]
    message = create(client, served, stop_sequences=[stop])
    assert message.content[0].text == whole[: whole.index(stop)]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)


def test_an_assistants_last_message_is_continued(client: anthropic.Anthropic, served: Served) -> None:
    whole = create(client, served).content[0].text
    turns = [*HELLO, {"role": "assistant", "content": whole[:5]}]
    assert create(client, served, messages=turns).content[0].text


def test_errors_raise_the_clients_exceptions(client: anthropic.Anthropic, served: Served) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\].type"):
        create(client, served, tools=[{"type": "web_search_20250305", "name": "web_search"}])
    with pytest.raises(anthropic.NotFoundError):
        create(client, served, model="claude")
    with pytest.raises(anthropic.BadRequestError, match="context"):
        create(client, served, messages=[{"role": "user", "content": "the cat sat " * 4000}])


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


def test_the_other_api_is_untouched(served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        served.client.models.retrieve("other")
    assert caught.value.code == "model_not_found"
