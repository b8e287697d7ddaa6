"""The fields of tools: what each must be, and which fields they exclude."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from http_world import HELLO, MODEL, HttpWorld, http_world, last_generate, refused
from tiny_model import CHATML

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
TAG: Any = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}


def function(name: str, **more: Any) -> Any:
    return {"type": "function", "function": {"name": name, **more}}


def allowed(mode: str, *names: str) -> Any:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [function(n) for n in names]}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(context_length=1024) as world:
        yield world


async def test_two_tools_of_one_name_are_refused(world: HttpWorld) -> None:
    error = await refused(world, tools=[function("look"), function("go"), function("look")])
    assert error["param"] == "tools[2].function.name"
    assert "'look'" in error["message"] and "tools[0]" in error["message"]


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
@pytest.mark.parametrize("levels", [300, 2000, 20_000])
async def test_a_tool_s_schema_nested_too_deep_is_named(world: HttpWorld, choice: str, levels: int) -> None:
    schema = '{"items":' * levels + "{}" + "}" * levels
    body = {"messages": HELLO, "tool_choice": choice, "tools": [function("f", parameters=0)]}
    content = json.dumps(body).replace('"parameters": 0', f'"parameters": {schema}')
    response = await world.http.post("/v1/chat/completions", content=content)
    assert response.status_code == 400
    assert "nested" in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["array", None, ["null", "string"], ["object", "nul"]])
async def test_a_tools_parameters_are_of_an_object(world: HttpWorld, kind: Any) -> None:
    error = await refused(world, tools=[function("go"), function("look", parameters={"type": kind})])
    assert error["param"] == "tools[1].function.parameters.type"
    assert json.dumps(kind) in error["message"]


@pytest.mark.parametrize("choice", ["auto", "required", function("go"), allowed("auto", "go")], ids=str)
async def test_a_grammar_knows_the_field_of_each_tools_parameters(world: HttpWorld, choice: Any) -> None:
    world.script = world.says("Hm.")
    body = {"messages": HELLO, "tools": [function("look"), function("go")], "tool_choice": choice}
    assert (await world.http.post("/v1/chat/completions", json=body)).status_code == 200
    grammar = last_generate(world).grammar
    assert grammar is not None and grammar.params["go"] == "tools[1].function.parameters"


async def test_a_tool_that_has_no_form_in_the_models_language_is_named_by_its_place() -> None:
    template = CHATML + "{# <|python_start|>[f(a=1)] #}{% if tools %}{{ tools | tojson }}{% endif %}"
    async with http_world(template, context_length=1024) as pythonic:
        odd = function("look", parameters={"type": "object", "properties": {"a-b": {}}})
        error = await refused(pythonic, tools=[function("go"), odd], tool_choice="required")
        assert error["param"] == "tools[1].function.parameters"
        assert "'a-b'" in error["message"]


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "function"}, "tool_choice.function"),
        ({"type": "tool", "function": {"name": "look"}}, "tool_choice.type"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        (allowed("sometimes", "look"), "tool_choice.allowed_tools.mode"),
        (allowed("auto"), "tool_choice"),
        (allowed("auto", "go"), "tool_choice"),
        ("any", "tool_choice"),
    ],
)
async def test_an_incomplete_tool_choice_names_the_missing_field(
    world: HttpWorld, choice: Any, param: str
) -> None:
    error = await refused(world, tools=[function("look")], tool_choice=choice)
    assert error["param"] == param


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_of_several_tools_some_may_be_allowed(world: HttpWorld, mode: str) -> None:
    world.script = world.says("Hm.")
    body = {
        "messages": HELLO,
        "tools": [function("look"), function("go")],
        "tool_choice": allowed(mode, "go"),
    }
    assert (await world.http.post("/v1/chat/completions", json=body)).status_code == 200
    grammar = last_generate(world).grammar
    assert grammar is not None and "go" in grammar.text and "look" not in grammar.text


@pytest.mark.parametrize(
    "asked",
    [{"guided_grammar": "start: /a/"}, {"response_format": {"type": "structural_tag", "format": TAG}}],
)
async def test_constraints_that_exclude_tools_are_refused_unless_no_tool_may_be_called(
    world: HttpWorld, asked: Any
) -> None:
    error = await refused(world, tools=[function("look")], **asked)
    assert error["param"] == next(iter(asked))
    assert "tools" in error["message"]
    world.script = world.says("a")
    body = {"model": MODEL, "messages": HELLO, "tools": [function("look")], "tool_choice": "none", **asked}
    assert (await world.http.post("/v1/chat/completions", json=body)).status_code == 200


async def test_tools_and_a_schema_exclude_each_other_where_calls_are_json() -> None:
    template = CHATML + "{# <|python_tag|> #}{% if tools %}{{ tools | tojson }}{% endif %}"
    async with http_world(template, context_length=1024) as llama:
        error = await refused(llama, tools=[function("look")], response_format=SCHEMA)
        assert error["param"] == "response_format.json_schema.schema"
        assert "this model's calls are JSON too" in error["message"]
        llama.script = llama.says("yes")
        body = {"messages": HELLO, "tools": [function("look")], "choice": ["yes", "no"]}
        assert (await llama.http.post("/v1/chat/completions", json=body)).status_code == 200


@pytest.mark.parametrize("choice", ["required", function("look"), allowed("required", "look")], ids=str)
async def test_a_required_call_excludes_a_schema(world: HttpWorld, choice: Any) -> None:
    error = await refused(world, tools=[function("look")], tool_choice=choice, response_format=SCHEMA)
    assert error["param"] == "tool_choice"
    assert "to 'auto', or leave one of them out" in error["message"]


async def test_a_schema_beside_tools_keeps_its_options(world: HttpWorld) -> None:
    world.script = world.says("{}")
    fields = {"property_order": "any", "unenforced": "allow", "response_format": SCHEMA}
    body = {"model": MODEL, "messages": HELLO, "tools": [function("look")], **fields}
    assert (await world.http.post("/v1/chat/completions", json=body)).status_code == 200
    grammar = last_generate(world).grammar
    assert grammar is not None
    assert (grammar.kind, grammar.property_order, grammar.unenforced) == ("structural_tag", "any", "allow")
    assert grammar.param == "response_format.json_schema.schema"
