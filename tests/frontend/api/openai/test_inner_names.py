"""Names within response_format, structured_outputs, tools and tool_choice: a constraint is never dropped."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.http.field_names import MAX_ELEMENTS, MAX_UNKNOWN
from http_world import HELLO, HttpWorld, error_of, http_world, last_generate

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "null"}}}
TAG = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}
NAMED = {"name": "a", "schema": SCHEMA}
IN_FORMAT = "response_format may have type, json_schema, schema, format, structures, triggers."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(context_length=1 << 20) as world:
        yield world


def format(type: str, **fields: Any) -> Any:
    return {"response_format": {"type": type, **fields}}


def function(**fields: Any) -> Any:
    return {"tools": [{"type": "function", "function": {"name": "f", **fields}}]}


def choice(**fields: Any) -> Any:
    return {**function(parameters=SCHEMA), "tool_choice": fields}


@pytest.mark.parametrize(
    ("fields", "param", "advice"),
    [
        (format("json_object", json_schema=NAMED), "json_schema", "make the type 'json_schema', or leave"),
        (format("text", schema=SCHEMA), "schema", "make the type 'json_schema', or leave schema out."),
        (format("text", json_schema=NAMED), "json_schema", "as response_format.type is 'text': make"),
        (format("text", format=TAG), "format", "make the type 'structural_tag', or leave format out."),
        (format("json_schema", json_schema=NAMED, triggers=["<"]), "triggers", "make the type 'structural"),
        (format("structural_tag", format=TAG, schema=SCHEMA), "schema", "make the type 'json_schema', or"),
        (format("json_schema", json_schema={"name": "a", "shema": SCHEMA}), "json_schema.shema", "schema?"),
        (format("json_schema", json_shema=NAMED), "json_shema", "Did you mean response_format.json_schema?"),
        (format("json_schema", jsonSchema=NAMED), "jsonSchema", "Did you mean response_format.json_schema?"),
        (format("json_object", shema=SCHEMA), "shema", "Did you mean response_format.schema?"),
        (format("json_object", value=SCHEMA), "value", IN_FORMAT),
        (format("text", regex="a+"), "regex", IN_FORMAT),
        (
            format("json_schema", json_schema=SCHEMA),
            "json_schema.properties",
            "json_schema.schema.properties?",
        ),
        (format("json_schema", json_schema={**NAMED, "definitions": SCHEMA}), "json_schema.definitions", ""),
    ],
)
async def test_a_response_format_is_refused_rather_than_left_out(
    world: HttpWorld, fields: Any, param: str, advice: str
) -> None:
    for path, body in ((CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "Hello"})):
        error = await error_of(world, path, {**body, **fields})
        assert error["param"] == f"response_format.{param}"
        assert advice in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "meant"),
    [
        ({"structured_outputs": {"chioces": ["a"]}}, "structured_outputs.chioces", "structured_outputs may"),
        ({"structured_outputs": {"gramar": "a"}}, "structured_outputs.gramar", "structured_outputs.grammar?"),
        (
            {"structured_outputs": {"json_schema": {}, "regex": "a", "ebnf": "a"}},
            None,
            "structured_outputs.grammar?",
        ),
        (function(paramters=SCHEMA), "tools[0].function.paramters", "tools[0].function.parameters?"),
        (function(input_schema=SCHEMA), "tools[0].function.input_schema", "tools[0].function.parameters?"),
        (function(strictt=True), "tools[0].function.strictt", "tools[0].function.strict?"),
        (
            {"tools": [{**function()["tools"][0], "parameters": SCHEMA}]},
            "tools[0].parameters",
            "function.parameters?",
        ),
        (choice(type="function", name="f"), "tool_choice.name", "tool_choice.function.name?"),
        (choice(type="function", functon={"name": "f"}), "tool_choice.functon", "tool_choice.function?"),
        (choice(type="allowed_tools", mode="auto"), "tool_choice.mode", "tool_choice.allowed_tools.mode?"),
    ],
)
async def test_a_name_that_was_meant_to_bind_the_reply_is_refused(
    world: HttpWorld, fields: Any, param: str | None, meant: str
) -> None:
    error = await error_of(world, CHAT, {"messages": HELLO, **fields})
    assert meant in error["message"]
    assert error["code"] == "unknown_parameter"
    assert param in (None, error["param"])


@pytest.mark.parametrize(
    "fields",
    [
        format("text", json_schema=None, schema={}, whim=1),
        format("text", json_schema={}, name="a", description="nothing"),
        format("text", schema=False, structures=[], triggers=[], format=""),
        format("json_object", shema=None, strict=True),
        format("json_schema", json_schema={**NAMED, "strickt": True, "title": "a"}),
        {"structured_outputs": {"regex": ".*", "whim": 5, "_backend": None}},
        format("structural_tag", format=TAG, structures=[], triggers=[]),
        function(parameters=SCHEMA, **{"return": SCHEMA}),
        function(parameters=SCHEMA, input_schema=SCHEMA, cache_control={"type": "ephemeral"}),
        function(input_schema={}),
        {"tools": [{**function()["tools"][0], "cache_control": {"type": "ephemeral"}}]},
        choice(type="function", function={"name": "f"}, disable_parallel_tool_use=True),
        choice(type="function", function={"name": "f"}, name="f"),
        {"tools": [{**function(parameters=SCHEMA)["tools"][0], "parameters": SCHEMA, "name": "f"}]},
    ],
)
async def test_a_name_that_binds_nothing_is_ignored(world: HttpWorld, fields: Any) -> None:
    response = await world.http.post(CHAT, json={"messages": HELLO, **fields})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "fields",
    [
        format("json_object", schema=SCHEMA),
        format("json_schema", schema=SCHEMA),
        format("json_schema", schema=json.dumps(SCHEMA), name="a", strict=True),
        format("json_schema", json_schema=NAMED, schema=SCHEMA),
    ],
)
async def test_a_schema_is_taken_where_other_servers_take_it(world: HttpWorld, fields: Any) -> None:
    response = await world.http.post(CHAT, json={"messages": HELLO, **fields})
    assert response.status_code == 200, response.text
    grammar = last_generate(world).grammar
    assert grammar is not None and json.loads(grammar.text) == SCHEMA


@pytest.mark.parametrize(
    ("tag", "param"),
    [
        ({**TAG, "contents": {"type": "any_text"}}, "response_format.format.contents"),
        ({"type": "json_schema", "json_schema": {}, "shema": SCHEMA}, "response_format.format.shema"),
        ({"type": "sequence", "elements": [{**TAG, "ends": "b"}]}, "response_format.format.elements[0].ends"),
        (
            {"type": "tags_with_separator", "separator": "", "tags": [TAG], "at_least_on": True},
            "response_format.format.at_least_on",
        ),
    ],
)
async def test_a_structural_tag_with_an_unknown_name_is_refused(
    world: HttpWorld, tag: Any, param: str
) -> None:
    error = await error_of(world, CHAT, {"messages": HELLO, **format("structural_tag", format=tag)})
    assert error["param"] == param
    assert f"{param} is no known field. {param.rpartition('.')[0]} may have type, " in error["message"]


async def test_two_schemas_of_a_response_format_must_be_the_same(world: HttpWorld) -> None:
    fields = format("json_schema", json_schema=NAMED, schema={"type": "null"})
    error = await error_of(world, CHAT, {"messages": HELLO, **fields})
    assert "response_format.json_schema.schema and response_format.schema can't be used" in error["message"]


@pytest.mark.parametrize("name", ["structures", "triggers"])
async def test_a_structural_tag_has_one_of_its_two_forms(world: HttpWorld, name: str) -> None:
    parts = {"structures": [{"begin": "<b>", "schema": {}, "end": "</b>"}], "triggers": ["<b"]}
    fields = {"format": TAG, name: parts[name]}
    for place in (format("structural_tag", **fields), {"structured_outputs": {"structural_tag": fields}}):
        error = await error_of(world, CHAT, {"messages": HELLO, **place})
        assert error["param"].endswith(f".{name}")
        assert ".format: give only one." in error["message"]


async def test_the_names_of_a_limited_number_of_tools_are_checked(world: HttpWorld) -> None:
    named = {"type": "function", "function": {"name": "f"}}
    allowed = {"mode": "auto", "tools": [named] * (MAX_ELEMENTS + 1)}
    fields = choice(type="allowed_tools", allowed_tools=allowed)
    error = await error_of(world, CHAT, {"messages": HELLO, **fields})
    assert error["param"] == "tool_choice.allowed_tools.tools"
    assert error["message"].endswith("has 1025 elements, but may have at most 1024.")


async def test_a_misspelt_constraint_is_found_among_many_unknown_names(world: HttpWorld) -> None:
    many = {f"a{number}": 1 for number in range(MAX_UNKNOWN - 1)}
    assert (await world.http.post(CHAT, json={"messages": HELLO, **many})).status_code == 200
    error = await error_of(world, CHAT, {"messages": HELLO, **many, "regx": "a"})
    assert error["message"] == "regx is no known field. Did you mean regex?"
    error = await error_of(world, CHAT, {"messages": HELLO, **many, "a": 1, "b": 1})
    assert error["message"] == f"The request has more than {MAX_UNKNOWN} unknown fields: leave them out."


async def test_the_same_unknown_name_in_each_of_many_tools_counts_once(world: HttpWorld) -> None:
    tool = function(parameters={})["tools"][0]["function"]
    tools = [
        {"type": "function", "function": {**tool, "name": f"f{number}", "cache_control": 1}}
        for number in range(2 * MAX_UNKNOWN)
    ]
    assert (await world.http.post(CHAT, json={"messages": HELLO, "tools": tools})).status_code == 200
