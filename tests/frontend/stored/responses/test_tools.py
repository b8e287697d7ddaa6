"""Calls of tools in responses, from a scripted scheduler."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import agents
import pytest
import pytest_asyncio
from codex import APPLY_PATCH, HEADERS, TOOLS, first_turn, next_turn
from fake_scheduler import unpacked
from http_world import MODEL, last_generate
from responses_world import ResponsesWorld, called, responses_world

pytestmark = pytest.mark.asyncio(loop_scope="module")
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "name": "weather", "description": "Looks it up.", "parameters": CITY}
CLOCK: Any = {"type": "function", "name": "clock"}
CODE: Any = {"type": "custom", "name": "code", "description": "Runs Python."}
CRM: Any = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [{**WEATHER, "name": "get"}, {**CODE, "name": "note"}],
}
PATCH = '*** Begin Patch\n*** Add File: a "b"\\c.txt\n+Grüße\t1\n*** End Patch\n'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[ResponsesWorld]:
    async with responses_world() as world:
        yield world


def prompt_of(world: ResponsesWorld) -> str:
    return world.http_world.text(unpacked(last_generate(world.http_world).prompt))


def grammar_of(world: ResponsesWorld) -> str:
    grammar = last_generate(world.http_world).grammar
    assert grammar is not None
    return grammar.text


async def turns(world: ResponsesWorld, said: str, result: str, **fields: Any) -> tuple[Any, str]:
    """The item of a call, and the prompt of the next turn, which begins as the first turn ended."""
    world.says(said)
    first = await world.create(**fields)
    call = first.output[-1]
    before = prompt_of(world) + said
    output = {"type": f"{call.type}_output", "call_id": call.call_id, "output": result}
    world.says("Done")
    await world.create(**{**fields, "input": [output], "previous_response_id": first.id})
    assert prompt_of(world).startswith(before), "the call is rendered as it was sampled"
    return call, prompt_of(world)


async def test_a_function_is_called_and_its_result_returns(world: ResponsesWorld) -> None:
    said = called("weather", '{"city": "Oslo"}')
    call, prompt = await turns(world, said, "Rain", tools=[WEATHER, CLOCK])
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call",
        "weather",
        {"city": "Oslo"},
    )
    assert (call.status, call.namespace) == ("completed", None)
    assert "<|im_start|>tool\nRain<|im_end|>" in prompt


async def test_the_events_of_a_call(world: ResponsesWorld) -> None:
    world.says(called("weather", '{"city": "Oslo"}'))
    events = await world.events(tools=[WEATHER])
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 5
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert "".join(deltas) == done.arguments == '{"city": "Oslo"}'
    assert done.name == "weather"
    call = events[-1].response.output[0]
    assert {event.item_id for event in events if "arguments" in event.type} == {call.id}


async def test_two_calls_have_items_of_their_own(world: ResponsesWorld) -> None:
    world.says("Both:\n" + called("weather", '{"city": "Oslo"}') + "\n" + called("clock", "{}"))
    response = await world.create(tools=[WEATHER, CLOCK])
    assert [item.type for item in response.output] == ["message", "function_call", "function_call"]
    assert len({item.id for item in response.output}) == 3
    one = await world.create(tools=[WEATHER, CLOCK], parallel_tool_calls=False)
    assert one.parallel_tool_calls is False
    assert json.loads(grammar_of(world))["content"]["stop_after_first"] is True


async def test_a_cut_call_is_incomplete(world: ResponsesWorld) -> None:
    world.says(called("weather", '{"city": "Oslo"}'))
    size = len(world.ids('<tool_call>\n{"name": "weather", "arguments": {"city": "Os'))
    response = await world.create(tools=[WEATHER], max_output_tokens=size)
    assert (response.status, response.output[0].status) == ("incomplete", "incomplete")
    assert response.output[0].arguments == '{"city": "Os'


async def test_a_custom_tool_gets_its_input_as_text(world: ResponsesWorld) -> None:
    code = 'print("Grüße\\n")\n\U0001f600'
    said = called("code", json.dumps({"input": code}, ensure_ascii=False))
    call, prompt = await turns(world, said, "ok", tools=[CODE, WEATHER])
    assert (call.type, call.name, call.input) == ("custom_tool_call", "code", code)
    assert "<|im_start|>tool\nok<|im_end|>" in prompt


@pytest.mark.parametrize("ascii", [False, True])
async def test_the_input_of_a_custom_tool_streams(world: ResponsesWorld, ascii: bool) -> None:
    code = 'a "b"\n\\ \U0001f600 é'
    world.says(called("code", json.dumps({"input": code}, ensure_ascii=ascii)))
    events = await world.events(tools=[CODE])
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    done = next(event for event in events if event.type == "response.custom_tool_call_input.done")
    assert len(deltas) > 5
    assert "".join(deltas) == done.input == events[-1].response.output[0].input == code


async def test_a_patch_of_codex_keeps_its_text(world: ResponsesWorld) -> None:
    said = called("apply_patch", json.dumps({"input": PATCH}, ensure_ascii=False))
    call, _ = await turns(world, said, "Success", tools=[APPLY_PATCH])
    assert call.input == PATCH
    assert "*** Begin Patch" in grammar_of(world)
    assert "start: begin_patch hunk+ end_patch" in prompt_of(world), "the model is told the grammar"


async def test_names_in_a_namespace_return_unflattened(world: ResponsesWorld) -> None:
    call, _ = await turns(world, called("crm.get", '{"city": "Oslo"}'), "x", tools=[CRM, WEATHER])
    assert (call.name, call.namespace) == ("get", "crm")
    call, _ = await turns(world, called("crm.note", '{"input": "hello"}'), "x", tools=[CRM])
    assert (call.type, call.name, call.namespace, call.input) == ("custom_tool_call", "note", "crm", "hello")


async def test_the_local_shell_is_a_tool_of_the_client(world: ResponsesWorld) -> None:
    said = called("local_shell", '{"command": ["ls", "-l"], "timeout_ms": 1000}')
    call, prompt = await turns(world, said, "a.txt", tools=[{"type": "local_shell"}])
    assert (call.type, call.action.command, call.action.timeout_ms) == (
        "local_shell_call",
        ["ls", "-l"],
        1000,
    )
    assert "<|im_start|>tool\na.txt<|im_end|>" in prompt


CHOICES: list[tuple[Any, set[str]]] = [
    ("required", {"weather", "code", "crm.get", "crm.note"}),
    ({"type": "function", "name": "weather"}, {"weather"}),
    ({"type": "custom", "name": "code"}, {"code"}),
    ({"type": "function", "name": "get"}, {"crm.get"}),
    ({"type": "function", "name": "get", "namespace": "crm"}, {"crm.get"}),
    (
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "weather"}, {"type": "custom", "name": "code"}],
        },
        {"weather", "code"},
    ),
    (
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
        {"weather"},
    ),
]


@pytest.mark.parametrize(("choice", "names"), CHOICES)
async def test_a_tool_choice_limits_the_calls(world: ResponsesWorld, choice: Any, names: set[str]) -> None:
    world.says(called("weather", '{"city": "Oslo"}'))
    response = await world.create(tools=[WEATHER, CODE, CRM], tool_choice=choice)
    content = json.loads(grammar_of(world))["content"]
    tags = content["tags"] if "tags" in content else content["content"]["tags"]
    assert {tag["begin"].split('"name": "')[1].split('"')[0] for tag in tags} == names
    assert ("triggers" in content) == (isinstance(choice, dict) and choice.get("mode") == "auto")
    assert "crm.note" in prompt_of(world), "the prompt has all tools, so that its cache serves"
    shown = response.tool_choice
    assert (shown if isinstance(shown, str) else shown.to_dict()) == choice


async def test_without_a_choice_of_tools_the_reply_is_text(world: ResponsesWorld) -> None:
    world.says("Hello")
    await world.create(tools=[WEATHER], tool_choice="none")
    assert last_generate(world.http_world).grammar is None


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "namespace", "name": "a"}]}, "tools[0].tools", "missing"),
    (
        {"tools": [{"type": "namespace", "name": "a", "tools": [CRM]}]},
        "tools[0].tools[0].type",
        "'namespace'",
    ),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name", "the name of tools[0] too"),
    (
        {"tools": [{**CRM, "tools": [{**WEATHER, "parameters": {"type": "array"}}]}]},
        "tools[0].tools[0].parameters.type",
        "object",
    ),
    ({"tools": [{**CODE, "format": {"type": "xml"}}]}, "tools[0].format.type", "'xml'"),
    (
        {"tools": [{**CODE, "format": {"type": "grammar", "definition": "x"}}]},
        "tools[0].format.syntax",
        "missing",
    ),
    (
        {"tools": [{**CODE, "format": {"type": "grammar", "syntax": "regex", "definition": "("}}]},
        "tools[0].format.definition",
        "is wrong",
    ),
    (
        {"tools": [{**CODE, "format": {"type": "grammar", "syntax": "lark", "definition": "%declare A"}}]},
        "tools[0].format.definition",
        "%declare is not supported",
    ),
    ({"tools": [CODE], "tool_choice": {"type": "function", "name": "code"}}, "tool_choice", "not among"),
    ({"tools": [CODE], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.mode", "missing"),
    (
        {
            "tools": [{**CRM, "tools": [WEATHER]}, WEATHER],
            "tool_choice": {"type": "function", "name": "weather"},
        },
        "tool_choice",
        "give its namespace",
    ),
]


@pytest.mark.parametrize(("body", "param", "said"), WRONG)
async def test_a_wrong_tool_is_refused_by_the_name_of_its_field(
    world: ResponsesWorld, body: dict[str, Any], param: str, said: str
) -> None:
    answer = await world.post(**body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert said in error["message"]


async def test_codex_edits_a_file_in_two_turns(world: ResponsesWorld) -> None:
    """Its requests store nothing, so each has the whole conversation, with the reasoning encrypted."""
    http, request = world.http_world.http, first_turn(MODEL)
    thought = "<think>\nI look first.\n</think>\n\n"
    steps = [
        thought + called("shell", '{"command": ["ls"]}'),
        thought + called("apply_patch", json.dumps({"input": PATCH}, ensure_ascii=False)),
        "Done.",
    ]
    before = ""
    for step in steps:
        world.says(step)
        answer = await http.post("/v1/responses", json=request, headers=HEADERS)
        assert answer.status_code == 200, answer.text
        prompt = prompt_of(world)
        assert prompt.startswith(before), "each turn continues the last one"
        before = prompt + step
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        completed = events[-1]
        assert completed["type"] == "response.completed"
        assert completed["response"]["store"] is False
        assert {"input_tokens", "output_tokens", "total_tokens"} <= completed["response"]["usage"].keys()
        calls = {item["call_id"]: "ok" for item in items if "call_id" in item}
        request = next_turn(request, items, calls)
    assert prompt_of(world).count("I look first.") == 2
    assert [item["role"] for item in items] == ["assistant"]
    assert all(tool["name"] in prompt for tool in TOOLS if "name" in tool)


async def test_the_agents_of_openai_run_their_tools(world: ResponsesWorld) -> None:
    asked: list[str] = []

    @agents.function_tool
    def weather(city: str) -> str:
        """Looks up the weather."""
        asked.append(city)
        return "Rain"

    def script(request: Any) -> list[int]:
        has_result = "Rain" in world.http_world.text(unpacked(request.prompt))
        text = "It rains." if has_result else called("weather", '{"city": "Oslo"}')
        return [*world.ids(text), world.http_world.tokenizer.eos_tokens[0]]

    world.http_world.script = script
    agents.set_tracing_disabled(True)
    model = agents.OpenAIResponsesModel(model=MODEL, openai_client=world.client)
    agent = agents.Agent(name="forecaster", instructions="Help.", model=model, tools=[weather])
    result = await agents.Runner.run(agent, "How is the weather?")
    assert (result.final_output, asked) == ("It rains.", ["Oslo"])
    streamed = agents.Runner.run_streamed(agent, "And today?")
    async for _ in streamed.stream_events():
        pass
    assert (streamed.final_output, asked) == ("It rains.", ["Oslo", "Oslo"])
