"""Responses as OpenAI's client reads them, from a scripted scheduler."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pydantic
import pytest
import pytest_asyncio
from arbora.runtime.messages import Generate, LeaseTerms
from fake_scheduler import unpacked
from http_world import last_generate
from responses_world import ResponsesWorld, responses_world

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Person(pydantic.BaseModel):
    age: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[ResponsesWorld]:
    async with responses_world() as world:
        yield world


def prompt_of(world: ResponsesWorld) -> str:
    return world.http_world.text(unpacked(last_generate(world.http_world).prompt))


async def test_a_text_gets_a_response_with_its_usage(world: ResponsesWorld) -> None:
    world.says("Hello, how are you?")
    response = await world.create(input="Hi", instructions="Be brief.", metadata={"for": "a test"})
    assert (response.output_text, response.status) == ("Hello, how are you?", "completed")
    usage = response.usage
    assert usage.input_tokens == len(last_generate(world.http_world).prompt) // 4
    assert usage.output_tokens == len(world.ids("Hello, how are you?")) + 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert response.metadata == {"for": "a test"}
    assert prompt_of(world).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>"
    )


async def test_messages_of_all_roles_and_forms_reach_the_template(world: ResponsesWorld) -> None:
    await world.create(
        input=[
            {"role": "developer", "content": "Rules"},
            {"role": "user", "content": [{"type": "input_text", "text": "One"}]},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Two", "annotations": []}],
            },
            {"role": "user", "content": "Three"},
        ]
    )
    assert prompt_of(world) == (
        "<|im_start|>system\nRules<|im_end|>\n<|im_start|>user\nOne<|im_end|>\n"
        "<|im_start|>assistant\nTwo<|im_end|>\n<|im_start|>user\nThree<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_every_event_has_its_number_and_its_place(world: ResponsesWorld) -> None:
    world.says("<think>\nhm\n</think>\n\nYes")
    events = await world.events()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    text = ["response.output_text.delta"] * 3
    thought = ["response.reasoning_text.delta"] * 2
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *thought,
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        *text,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    reasoning, message = events[-1].response.output
    for event in events[2:-1]:
        item = (reasoning, message)[event.output_index]
        named = event.item.id if "output_item" in event.type else event.item_id
        assert named == item.id
    assert events[2].item.content == [], "an item is empty when it begins"
    assert (reasoning.content[0].text, message.content[0].text) == ("hm", "Yes")


async def test_the_client_assembles_a_stream(world: ResponsesWorld) -> None:
    world.says('{"age": 7}')
    async with world.client.responses.stream(model="tiny", input="Age?", text_format=Person) as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        response = await stream.get_final_response()
    assert "".join(texts) == '{"age": 7}'
    assert response.output_parsed == Person(age=7)


async def test_a_schema_constrains_the_text(world: ResponsesWorld) -> None:
    world.says('{"age": 7}')
    parsed = await world.client.responses.parse(model="tiny", input="Age?", text_format=Person)
    assert parsed.output_parsed == Person(age=7)
    assert schema_of(world)["required"] == ["age"]
    await world.create(text={"format": {"type": "json_object"}})
    assert schema_of(world) == {"type": "object"}


def schema_of(world: ResponsesWorld) -> Any:
    """The schema of the last request, whose text comes after optional reasoning."""
    grammar = last_generate(world.http_world).grammar
    assert grammar is not None
    return json.loads(grammar.text)["content"]["json_schema"]


@pytest.mark.parametrize("field", ["regex", "grammar", "choice"])
async def test_a_response_may_be_constrained_as_a_chat(world: ResponsesWorld, field: str) -> None:
    value = ["yes", "no"] if field == "choice" else "yes|no" if field == "regex" else 'start: "yes" | "no"'
    await world.create(extra_body={field: value})
    grammar = last_generate(world.http_world).grammar
    assert grammar is not None
    assert grammar.kind == field


@pytest.mark.parametrize("streams", [False, True])
async def test_a_response_at_its_limit_is_incomplete(world: ResponsesWorld, streams: bool) -> None:
    world.says("Hello, how are you?")
    if streams:
        *_, last = await world.events(max_output_tokens=3)
        assert last.type == "response.incomplete"
        response = last.response
    else:
        response = await world.create(max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"
    assert response.usage.output_tokens == 3


@pytest.mark.parametrize("streams", [False, True])
async def test_log_probabilities_belong_to_the_text(world: ResponsesWorld, streams: bool) -> None:
    world.says("<think>\nhm\n</think>\n\nYes")
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    if streams:
        events = await world.events(**fields)
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        found = [each for event in deltas for each in event.logprobs]
        assert "".join(each.token for each in found).strip() == "Yes"
        assert all(len(each.top_logprobs) == 2 for each in found)
        response = events[-1].response
    else:
        response = await world.create(**fields)
    logprobs = response.output[1].content[0].logprobs
    assert "".join(each.token for each in logprobs[:-1]).strip() == "Yes", "the last is the stop token"
    assert logprobs[-1].token == "<|im_end|>"


async def test_reasoning_is_sent_back_encrypted_or_open(world: ResponsesWorld) -> None:
    world.says("<think>\nhm é\n</think>\n\nYes")
    first = await world.create(include=["reasoning.encrypted_content"], store=False)
    assert first.output[0].encrypted_content
    assert first.usage.output_tokens_details.reasoning_tokens > 0
    items = [item.to_dict() for item in first.output]
    hidden = {name: value for name, value in items[0].items() if name != "content"}
    foreign = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
    prompts = []
    for reasoning in (items[0], hidden, foreign):
        history = [
            {"role": "user", "content": "Hello"},
            reasoning,
            items[1],
            {"role": "user", "content": "?"},
        ]
        await world.create(input=history)
        prompts.append(prompt_of(world))
    assert "<think>\nhm é\n</think>\n\nYes<|im_end|>" in prompts[0]
    assert prompts[1] == prompts[0]
    assert "<think>" not in prompts[2]
    without = await world.create()
    assert without.output[0].encrypted_content is None


async def test_the_next_turn_has_the_tokens_of_the_reply_as_it_was_sampled(world: ResponsesWorld) -> None:
    sampled = [token for character in "Hello there" for token in world.ids(character)]
    assert sampled != world.ids("Hello there")
    world.http_world.script = lambda request: [*sampled, world.http_world.tokenizer.eos_tokens[0]]
    first = await world.create(input="Hi", instructions="Be kind.")
    before = unpacked(last_generate(world.http_world).prompt) + sampled
    await world.create(input="And?", instructions="Be kind.", previous_response_id=first.id)
    assert unpacked(last_generate(world.http_world).prompt)[: len(before)] == before


async def test_a_stored_response_keeps_its_tokens_cached_for_half_an_hour(world: ResponsesWorld) -> None:
    world.says("Hello")
    await world.create()
    assert last_generate(world.http_world).leases == [LeaseTerms("conversation", 1800.0)]
    await world.create(store=False)
    assert last_generate(world.http_world).leases == []


async def test_the_tokens_of_a_prompt_are_counted(world: ResponsesWorld) -> None:
    fields: dict[str, Any] = {"input": "How many?", "instructions": "Count."}
    counted = await world.client.responses.input_tokens.count(model="tiny", **fields)
    response = await world.create(**fields)
    assert counted.input_tokens == response.usage.input_tokens


async def test_a_death_before_the_first_event_is_not_seen(world: ResponsesWorld) -> None:
    world.says("Hello, how are you?")
    await world.http_world.kill_replica()
    await world.http_world.start_replica()
    assert (await world.create()).output_text == "Hello, how are you?"


async def test_a_stream_ends_with_the_failure(world: ResponsesWorld) -> None:
    world.says("Hello, how are you?")
    world.running.pauses = True
    try:
        stream = await world.create(stream=True)
        events = []
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta" and world.http_world.scheduler is not None:
                await world.http_world.kill_replica()
    finally:
        await world.http_world.start_replica()
    assert events[-1].type == "response.failed"
    assert events[-1].sequence_number == len(events) - 1
    assert (events[-1].response.status, events[-1].response.error.code) == ("failed", "server_error")


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"input": []}, "input", "input is missing"),
    ({"input": [{"role": "user"}]}, "input[0].content", "is missing"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "'robot'"),
    ({"input": [{"type": "computer_call", "id": "1"}]}, "input[0].type", "'computer_call'"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
        "input[0].content[0]",
        "'input_image'",
    ),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id", "missing"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", "missing"),
    (
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "arbora.%"}]},
        "input[0].encrypted_content",
        "was changed",
    ),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search'"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type", "'mcp'"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "missing"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function", "tools[0].name"),
    ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice.type", "'web_search'"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "'xml'"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "missing"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "missing"),
    ({"text": {"format": {"type": "text", "schema": {}}}, "x": 1}, "text.format.schema", "no effect"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", "'loud'"),
    ({"text": {"schema": {"type": "object"}}}, "text.schema", "text.format.schema"),
    ({"reasoning": {"effort": "extreme"}}, "reasoning.effort", "'extreme'"),
    ({"truncation": "always"}, "truncation", "'always'"),
    ({"include": ["everything"]}, "include[0]", "'everything'"),
    ({"top_logprobs": 21}, "top_logprobs", "21"),
    ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    ({"max_output_tokens": 5000}, "max_output_tokens", "maximum context length"),
    ({"temperature": 3}, "temperature", "between 0 and 2"),
    ({"input": "word " * 4000}, "input", "maximum context length"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "not supported"),
    ({"response_format": {"type": "json_object"}}, "response_format", "text.format"),
    ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options", "stream is true"),
    ({"model": "other"}, "model", "does not exist"),
]


@pytest.mark.parametrize(("body", "param", "said"), REFUSED)
async def test_a_wrong_request_is_refused_by_the_name_of_its_field(
    world: ResponsesWorld, body: dict[str, Any], param: str, said: str
) -> None:
    answer = await world.post(**body)
    assert answer.status_code in (400, 404), answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert said in error["message"]


async def test_a_request_for_chats_is_told_what_to_send_here(world: ResponsesWorld) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    error = (await world.request("POST", "/v1/responses", json=body)).json()["error"]
    assert error["param"] == "messages"
    assert error["message"] == "messages is no known field. Did you mean input?"


async def test_hints_and_fields_without_effect_are_accepted(world: ResponsesWorld) -> None:
    world.says("Hello")
    response = await world.create(
        truncation="auto",
        safety_identifier="someone",
        service_tier="flex",
        max_tool_calls=3,
        user="me",
        include=["file_search_call.results"],
        text={"verbosity": "low"},
    )
    assert (response.output_text, response.truncation) == ("Hello", "disabled")
    assert response.text.verbosity == "low"


async def test_a_disconnected_client_aborts_its_response(world: ResponsesWorld) -> None:
    world.says("Hello, how are you?")
    world.running.pauses = True
    stream = await world.create(stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    await world.http_world.until(lambda: not world.running.rows)
    world.running.pauses = False
    world.running.gate.set()
    response_id = f"{world.running.of_kind(Generate)[-1].request.rpartition('-')[0]}"
    with pytest.raises(openai.NotFoundError):
        await world.client.responses.retrieve(response_id)


@pytest.mark.parametrize(
    ("item", "param"),
    [({"type": "nonsense"}, "input[0].type"), ({"type": "item_reference"}, "input[0].id")],
)
async def test_an_item_that_cannot_be_read_is_refused_by_its_field(
    world: ResponsesWorld, item: dict[str, Any], param: str
) -> None:
    answer = await world.post(input=[item])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
