"""POST /api/chat with Ollama's client and a scripted scheduler."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import ollama
import pydantic
import pytest
import pytest_asyncio
from arbora.runtime.messages import Generate, LeftOutKeyword
from http_world import MODEL, eventually, last_generate, last_prompt
from ollama_world import HELLO, TOOLS, OllamaWorld, called, ollama_world

pytestmark = pytest.mark.asyncio(loop_scope="module")
CALL = called("weather", '{"city": "Paris"}')
CLOCK = called("clock", "{}")
REASONED = "<think>\nHm.\n</think>\n\nFine."


class Person(pydantic.BaseModel):
    name: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[OllamaWorld]:
    async with ollama_world() as world:
        yield world


async def lines(world: OllamaWorld, path: str = "/api/chat", **body: Any) -> list[Any]:
    answer = await world.post(path, **{"messages": HELLO, **body})
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_an_answer_has_the_shape_that_ollama_documents(world: OllamaWorld) -> None:
    world.says("Hello, how are you?")
    body = (await world.post("/api/chat", model=MODEL, messages=HELLO, stream=False)).json()
    assert body["message"] == {"role": "assistant", "content": "Hello, how are you?"}
    assert (body["model"], body["done"], body["done_reason"]) == (MODEL, True, "stop")
    assert body["eval_count"] == len(world.ids("Hello, how are you?")) + 1
    assert body["prompt_eval_count"] == len(last_generate(world.http_world).prompt) // 4
    assert body["created_at"].endswith("Z")


async def test_a_stream_is_the_default_and_has_a_line_for_each_output(world: OllamaWorld) -> None:
    world.says("Hello, how are you?")
    *parts, last = await lines(world)
    assert "".join(part["message"]["content"] for part in parts) == "Hello, how are you?"
    assert len(parts) > 3 and not any(part["done"] for part in parts)
    assert {tuple(part) for part in parts} == {("model", "created_at", "message", "done")}
    assert all(part["model"] == MODEL and part["created_at"] <= last["created_at"] for part in parts)
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "stop", "")
    parts = [part async for part in await world.chat(stream=True)]
    assert "".join(part.message.content for part in parts) == "Hello, how are you?"


async def test_the_official_synchronous_client_is_served(world: OllamaWorld) -> None:
    world.says("Hello, how are you?")

    def ask() -> str:
        client = ollama.Client(host=world.http_world.url)
        streamed = client.chat(model=MODEL, messages=HELLO, stream=True)
        return "".join(part.message.content or "" for part in streamed)

    assert await asyncio.to_thread(ask) == "Hello, how are you?"


async def test_durations_are_measured_and_add_up_to_no_more_than_the_total(world: OllamaWorld) -> None:
    world.says("the cat sat on the mat")
    world.running.gate.clear()
    began = time.monotonic_ns()
    asked = asyncio.create_task(world.chat())
    await eventually(lambda: bool(world.running.rows))
    prepared_ns = time.monotonic_ns() - began
    await asyncio.sleep(0.2)
    world.running.gate.set()
    answer = await asked
    whole_ns = time.monotonic_ns() - began
    assert 0 < answer.load_duration <= prepared_ns
    assert answer.prompt_eval_duration >= 190_000_000
    parts = answer.load_duration + answer.prompt_eval_duration + answer.eval_duration
    assert parts <= answer.total_duration <= whole_ns


async def test_cached_tokens_are_counted_among_those_of_the_prompt(world: OllamaWorld) -> None:
    world.running.cached_tokens = 16
    try:
        *_, last = await lines(world)
    finally:
        world.running.cached_tokens = 0
    assert last["prompt_cached_count"] == 16 < last["prompt_eval_count"]


async def test_a_cut_answer_says_so(world: OllamaWorld) -> None:
    world.says("the cat sat on the mat " * 20)
    answer = await world.chat(options={"num_predict": 5})
    assert (answer.done_reason, answer.eval_count) == ("length", 5)


async def test_a_schema_reaches_the_scheduler(world: OllamaWorld) -> None:
    world.says('{"name": "Ada"}')
    answer = await world.chat(format=Person.model_json_schema(), think=False)
    grammar = last_generate(world.http_world).grammar
    assert grammar is not None and grammar.param == "format"
    assert Person.model_validate_json(answer.message.content).name == "Ada"
    assert Person.model_json_schema() == find(json.loads(grammar.text), "properties")


def find(value: Any, name: str) -> Any:
    """The first object with this member, in a JSON value."""
    if isinstance(value, dict):
        inner = value.values()
        return value if name in value else next(filter(None, (find(each, name) for each in inner)), None)
    return None


async def test_json_is_any_object(world: OllamaWorld) -> None:
    world.says("{}")
    await world.chat(format="json")
    grammar = last_generate(world.http_world).grammar
    assert grammar is not None and (grammar.kind == "json_object" or '"type":"object"' in grammar.text)
    await world.chat(format="")
    assert last_generate(world.http_world).grammar is None


async def test_calls_come_whole_with_objects_as_arguments(world: OllamaWorld) -> None:
    world.says(CALL + "\n" + CLOCK)
    message = (await world.chat(tools=TOOLS)).message
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [
        ("weather", {"city": "Paris"}),
        ("clock", {}),
    ]
    *parts, last = await lines(world, tools=TOOLS)
    calls = [call for part in parts for call in part["message"].get("tool_calls", ())]
    assert [call["function"]["index"] for call in calls] == [0, 1]
    assert calls[0]["function"]["arguments"] == {"city": "Paris"}
    assert (last["done_reason"], last["message"].get("tool_calls")) == ("stop", None)


async def test_text_precedes_its_call_in_a_stream(world: OllamaWorld) -> None:
    world.says(f"Let me look. {CALL}")
    *parts, _ = await lines(world, tools=TOOLS)
    texts = [part["message"]["content"] for part in parts if part["message"]["content"]]
    assert "".join(texts).strip() == "Let me look."
    assert parts[-1]["message"]["tool_calls"][0]["function"]["name"] == "weather"


async def test_a_cut_call_keeps_its_complete_members(world: OllamaWorld) -> None:
    world.says(CALL)
    message = (await world.chat(tools=TOOLS, options={"num_predict": len(world.ids(CALL)) - 25})).message
    assert all(isinstance(call.function.arguments, dict) for call in message.tool_calls or ())


async def test_a_result_answers_the_open_call_of_its_tool(world: OllamaWorld) -> None:
    """The template prints the ids, so that the test sees them."""
    shows_ids = (
        "{% for message in messages %}[{{ message.role }} {{ message.tool_call_id or '' }}"
        "{% for call in message.tool_calls or [] %}{{ call.id }}={{ call.function.name }} {% endfor %}]"
        "{{ message.content }}{% endfor %}"
    )
    calls: Any = [{"function": {"name": name, "arguments": {}}} for name in ("weather", "clock")]
    messages = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_name": "clock", "content": "Noon."},
        {"role": "tool", "content": "Sun."},
        {"role": "tool", "content": "Nothing asked for this."},
    ]
    async with ollama_world(shows_ids) as ids_world:
        await ids_world.chat(messages=messages)
        text = last_prompt(ids_world.http_world)
    assert "call00000=weather call00001=clock" in text
    assert text.index("[tool call00001]") < text.index("[tool call00000]") < text.index("[tool callnone0]")


async def test_the_next_turn_begins_with_the_tokens_of_the_last(world: OllamaWorld) -> None:
    world.says(CALL)
    first = await world.chat(tools=TOOLS)
    before = last_generate(world.http_world).prompt
    result = {"role": "tool", "tool_name": "weather", "content": "Sun."}
    await world.chat(tools=TOOLS, messages=[*HELLO, first.message, result])
    after = last_generate(world.http_world).prompt
    sampled = world.ids(CALL)
    assert after.startswith(before)
    assert list(memoryview(after[len(before) :]).cast("i"))[: len(sampled)] == sampled


async def test_thinking_is_apart_and_hidden_on_request(world: OllamaWorld) -> None:
    world.says(REASONED)
    message = (await world.chat()).message
    assert (message.thinking, message.content) == ("Hm.", "Fine.")
    *parts, _ = await lines(world, think=True)
    assert "".join(part["message"].get("thinking", "") for part in parts) == "Hm."
    hidden = (await world.chat(think=False)).message
    assert (hidden.thinking, hidden.content) == (None, "Fine.")


async def test_think_sets_the_variables_of_the_template() -> None:
    messages = "{% for message in messages %}{{ message.content }}{% endfor %}"
    template = "{{ enable_thinking }} {{ reasoning_effort }}<think>" + messages + "</think>"
    async with ollama_world(template) as world:
        for think, shown in ((True, "True "), (False, "False "), ("high", "True high")):
            await world.post("/api/chat", messages=HELLO, think=think, stream=False)
            assert last_prompt(world.http_world).startswith(shown)


async def test_thinking_is_refused_if_the_model_has_none() -> None:
    async with ollama_world("{% for m in messages %}{{ m.content }}{% endfor %}") as world:
        with pytest.raises(ollama.ResponseError, match="does not support thinking"):
            await world.chat(think=True)
        await world.chat(think=False)


async def test_a_last_message_of_the_assistant_is_continued(world: OllamaWorld) -> None:
    await world.chat(messages=[*HELLO, {"role": "assistant", "content": "It is"}])
    assert last_prompt(world.http_world).endswith("<|im_start|>assistant\nIt is")


async def test_log_probabilities_have_texts_and_alternatives(world: OllamaWorld) -> None:
    world.says("Hello, how are you?")
    answer = await world.chat(logprobs=True, top_logprobs=2)
    ids = world.ids("Hello, how are you?")
    assert [round(each.logprob, 3) for each in answer.logprobs[:-1]] == [-token / 100 for token in ids]
    assert "".join(each.token for each in answer.logprobs[:-1]) == "Hello, how are you?"
    assert len(answer.logprobs[0].top_logprobs) == 2
    *parts, _ = await lines(world, logprobs=True)
    assert sum(len(part["logprobs"]) for part in parts) == len(ids) + 1


async def test_no_messages_load_the_model(world: OllamaWorld) -> None:
    before = len(world.running.of_kind(Generate))
    assert (await world.chat(messages=[])).done_reason == "load"
    assert (await world.chat(messages=[], keep_alive=0)).done_reason == "unload"
    assert len(world.running.of_kind(Generate)) == before


async def test_an_unenforced_keyword_is_named(world: OllamaWorld) -> None:
    world.says('"x"')
    world.running.left_out = [LeftOutKeyword("format", "format")]
    try:
        *_, last = await lines(world, format={"type": "string", "format": "x"})
    finally:
        world.running.left_out = []
    assert last["unenforced"] == [{"keyword": "format", "path": "format"}]
