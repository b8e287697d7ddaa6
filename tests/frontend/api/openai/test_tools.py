"""Tool calls and reasoning in chat completions."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.core.replica.generation import Arrival, Generation, Take
from arbora.frontend.core.tools.tool_check import BoundedValidator
from arbora.runtime.messages import LeftOutKeyword
from fake_scheduler import unpacked
from http_world import MODEL, HttpWorld, http_world, last_generate, last_prompt

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO: Any = [{"role": "user", "content": "How is the weather?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Looks it up.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "clock"}},
]
# Hermes' way: tools in the system message, calls between tags, reasoning before the answer.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Answer with <tool_call>{...}</tool_call>.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content.split('</think>')[-1] if message.content else '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(TEMPLATE, context_length=1024) as world:
        yield world


async def create(world: HttpWorld, **fields: Any) -> Any:
    fields = {"model": MODEL, "messages": HELLO, "tools": TOOLS, **fields}
    return await world.client.chat.completions.create(**fields)


class Streamed:
    """The message that a stream's first choice adds up to."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.calls: list[list[str]] = []
        self.finish = ""

    def add(self, choice: Any) -> None:
        self.content += choice.delta.content or ""
        self.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        self.finish = choice.finish_reason or self.finish
        for call in choice.delta.tool_calls or []:
            if call.id:
                self.calls.append([call.function.name, ""])
            self.calls[call.index][1] += call.function.arguments or ""


async def streamed(world: HttpWorld, **fields: Any) -> Streamed:
    result = Streamed()
    async for chunk in await create(world, stream=True, **fields):
        result.add(chunk.choices[0])
    return result


async def test_a_call_in_free_text_becomes_a_tool_call(world: HttpWorld) -> None:
    world.script = world.says(CALL)
    choice = (await create(world)).choices[0]
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    grammar = last_generate(world).grammar
    assert grammar is not None and grammar.kind == "structural_tag" and grammar.param == "tools"


async def test_text_before_a_call_is_content(world: HttpWorld) -> None:
    world.script = world.says("I look. " + CALL)
    message = (await create(world)).choices[0].message
    assert message.content == "I look."
    assert len(message.tool_calls) == 1


async def test_several_calls_have_their_own_ids(world: HttpWorld) -> None:
    world.script = world.says(CALL + "\n" + CALL)
    calls = (await create(world)).choices[0].message.tool_calls
    assert len({call.id for call in calls}) == 2


async def test_tool_calls_stream(world: HttpWorld) -> None:
    world.script = world.says("I look. " + CALL)
    result = await streamed(world)
    assert result.content == "I look."
    assert [(name, json.loads(arguments)) for name, arguments in result.calls] == [
        ("weather", {"city": "Paris"})
    ]
    assert result.finish == "tool_calls"


async def test_a_reply_without_a_call_is_content(world: HttpWorld) -> None:
    world.script = world.says("It is fine.")
    choice = (await create(world)).choices[0]
    assert (choice.message.content, choice.message.tool_calls) == ("It is fine.", None)
    assert choice.finish_reason == "stop"


async def test_where_no_call_is_allowed_everything_is_content(world: HttpWorld) -> None:
    world.script = world.says(CALL)
    message = (await create(world, tool_choice="none")).choices[0].message
    assert (message.content, message.tool_calls) == (CALL, None)


async def test_a_required_call_is_constrained_to_the_tools(world: HttpWorld) -> None:
    world.script = world.says(CALL)
    choice = (await create(world, tool_choice="required")).choices[0]
    grammar = last_generate(world).grammar
    assert grammar is not None
    assert grammar.kind == "structural_tag"
    assert "weather" in grammar.text and "clock" in grammar.text
    assert choice.message.tool_calls[0].function.name == "weather"
    assert choice.finish_reason == "tool_calls"


async def test_a_named_call_is_constrained_to_that_tool(world: HttpWorld) -> None:
    world.script = world.says(CALL)
    named = {"type": "function", "function": {"name": "weather"}}
    result = await streamed(world, tool_choice=named)
    grammar = last_generate(world).grammar
    assert grammar is not None
    assert "clock" not in grammar.text
    assert result.calls == [["weather", '{"city": "Paris"}']]


async def test_a_chunk_has_one_delta_for_each_call(world: HttpWorld) -> None:
    world.running.tokens_per_step = len(world.ids(CALL))
    world.script = world.says("I look. " + CALL + "\n" + CALL)
    chunks = [chunk async for chunk in await create(world, stream=True)]
    world.running.tokens_per_step = 1
    told = [[call.index for call in chunk.choices[0].delta.tool_calls or []] for chunk in chunks]
    assert all(len(set(indices)) == len(indices) for indices in told)
    assert {index for indices in told for index in indices} == {0, 1}


async def test_the_clients_own_stream_helper_assembles_a_call(world: HttpWorld) -> None:
    world.script = world.says(CALL)
    manager = world.client.chat.completions.stream(
        model=MODEL, messages=HELLO, tools=TOOLS, tool_choice="required"
    )
    async with manager as stream:
        completion = await stream.get_final_completion()
    (call,) = completion.choices[0].message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})


async def test_a_call_cut_short_by_length_says_so(world: HttpWorld) -> None:
    world.script = world.says(CALL)
    choice = (await create(world, tool_choice="required", max_tokens=len(world.ids(CALL)) - 12)).choices[0]
    assert choice.finish_reason == "length"


async def test_the_turn_after_a_call_repeats_the_tokens_that_were_sampled(world: HttpWorld) -> None:
    letters = [token for letter in CALL for token in world.ids(letter)]
    world.script = lambda request: letters
    message = (await create(world)).choices[0].message
    first = unpacked(last_generate(world).prompt)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Sun."}
    await create(world, messages=[*HELLO, message.model_dump(exclude_none=True), result])
    second = unpacked(last_generate(world).prompt)
    assert second[: len(first) + len(letters)] == first + letters


async def test_calls_of_functions_are_rendered_as_calls_of_tools(world: HttpWorld) -> None:
    called = {"name": "weather", "arguments": '{"city": "Paris"}'}
    tool_call = {"id": "call00001", "type": "function", "function": called}
    older: Any = [
        *HELLO,
        {"role": "assistant", "content": None, "function_call": called},
        {"role": "function", "name": "weather", "content": "Sun."},
    ]
    newer: Any = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [tool_call]},
        {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "Sun."},
    ]
    prompts = []
    for messages in (older, newer):
        await create(world, messages=messages)
        prompts.append(last_prompt(world))
    assert prompts[0] == prompts[1]
    assert CALL in prompts[0] and "<|im_start|>tool\nSun." in prompts[0]


TAGS: Any = {
    "type": "function",
    "function": {
        "name": "tag",
        "parameters": {
            "type": "object",
            "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
            "required": ["tags"],
        },
    },
}


def tagging(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "tag", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "tag"}}])
async def test_keywords_that_the_grammar_omits_are_checked_in_the_complete_call(
    world: HttpWorld, choice: Any
) -> None:
    world.running.left_out = [LeftOutKeyword("uniqueItems", "tag#/properties/tags/uniqueItems")]
    try:
        world.script = world.says(tagging('{"tags": ["a", "b"]}'))
        result = await streamed(world, tools=[TAGS], tool_choice=choice)
        whole = await create(world, tools=[TAGS], tool_choice=choice)
        world.script = world.says(tagging('{"tags": ["a", "a"]}'))
        wrong = (await create(world, tools=[TAGS], tool_choice=choice)).choices[0]
    finally:
        world.running.left_out = ()
    assert result.calls == [["tag", '{"tags": ["a", "b"]}']]
    assert "unenforced" not in whole.model_extra
    assert (wrong.message.tool_calls, wrong.finish_reason) == (None, "stop")
    assert wrong.message.content == tagging('{"tags": ["a", "a"]}')


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_call_with_an_unknown_format_streams_and_the_reply_names_it(
    world: HttpWorld, choice: str
) -> None:
    world.running.left_out = [LeftOutKeyword("format", "weather#/properties/city/format")]
    world.script = world.says(CALL)
    try:
        chunks = [chunk async for chunk in await create(world, stream=True, tool_choice=choice)]
    finally:
        world.running.left_out = ()
    parts = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert len(parts) > 2
    named = [{"keyword": "format", "path": "weather#/properties/city/format"}]
    assert chunks[-1].model_extra["unenforced"] == named


@pytest.mark.parametrize(
    "parameters", [None, {}, {"type": "object"}, {"type": "object", "properties": {}, "title": "f"}], ids=str
)
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_tool_without_properties_is_called_with_an_empty_object(
    world: HttpWorld, parameters: Any, choice: str
) -> None:
    tool: Any = {"type": "function", "function": {"name": "clock", "parameters": parameters}}
    world.script = world.says('<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>')
    message = (await create(world, tools=[tool], tool_choice=choice)).choices[0].message
    assert message.tool_calls[0].function.arguments == "{}"
    sent = last_generate(world)
    assert sent.grammar is not None and '"additionalProperties":false' in sent.grammar.text
    assert '"properties": {}' in world.text(unpacked(sent.prompt))


async def test_reasoning_is_separated_from_content(world: HttpWorld) -> None:
    world.script = world.says("<think>\nLet me see.\n</think>\n\nIt is fine.")
    message = (await create(world, tools=[])).choices[0].message
    assert (message.reasoning_content, message.content) == ("Let me see.", "It is fine.")


async def test_reasoning_streams_before_content(world: HttpWorld) -> None:
    world.script = world.says("<think>\nLet me see.\n</think>\n\n" + CALL)
    result = await streamed(world)
    assert (result.reasoning, result.content) == ("Let me see.", "")
    assert result.calls[0][0] == "weather"


async def test_a_constrained_reply_is_not_searched_for_reasoning(world: HttpWorld) -> None:
    world.script = world.says("<think>")
    message = (await create(world, tools=[], extra_body={"regex": "<think>"})).choices[0].message
    assert message.content == "<think>"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("tokens_per_step", "delay_s"), [(1, 0.0), (1000, 0.0), (1, 0.3)])
@pytest.mark.parametrize("stop", [None, [f"x{CALL}!"]])  # it holds the whole call back
async def test_a_call_is_checked_on_another_thread(
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
    tokens_per_step: int,
    delay_s: float,
    stop: list[str] | None,
) -> None:
    checkers = []
    is_valid, receive = BoundedValidator.is_valid, Generation.next

    async def late(generation: Generation, take: Take | None = None) -> list[Arrival]:
        await asyncio.sleep(delay_s)  # outputs arrive together where the loop is slower than the model
        return await receive(generation, take)

    def watched(validator: BoundedValidator, value: object) -> bool:
        checkers.append(threading.current_thread())
        return is_valid(validator, value)

    monkeypatch.setattr(BoundedValidator, "is_valid", watched)
    monkeypatch.setattr(Generation, "next", late)
    async with http_world(TEMPLATE, context_length=1024) as world:
        world.script = world.says(f"x{CALL}")
        world.running.tokens_per_step = tokens_per_step
        world.running.left_out = [LeftOutKeyword("uniqueItems", "weather#/properties/city")]
        body = {"model": MODEL, "messages": HELLO, "tools": TOOLS, "stream": stream, "stop": stop}
        answer = await world.http.post("/v1/chat/completions", json={**body, "max_tokens": 500})
    assert answer.status_code == 200 and "tool_calls" in answer.text
    assert len(checkers) == 1 and threading.main_thread() not in checkers
