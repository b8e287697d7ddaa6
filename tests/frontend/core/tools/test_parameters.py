"""Parameters that are written one by one: their values are converted and constrained by their schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest
from arbora.frontend.core.tools.call_arguments import to_json
from arbora.frontend.core.tools.families import FORMATS
from arbora.frontend.core.tools.parameter_grammar import list_types, parameter_types
from arbora.frontend.core.tools.reply_parser import ReplyParser, ToolCallDelta, ToolReading
from arbora.frontend.core.tools.tool_grammar import (
    ToolError,
    build_required_calls,
    find_enforced,
    find_partly_enforced,
)
from arbora.grammars.errors import GrammarError, NotCoveredError
from json_automata import compile_tag

ANY = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))


def tool(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties), **more}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"type": "number"}, {"number", "integer"}),
        ({"enum": ["a", 1]}, {"string", "number", "integer"}),
        ({"const": None}, {"null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"$ref": "#/$defs/a"}, {"boolean"}),
        ({"allOf": [{"type": ["string", "array"]}, {"type": "array"}]}, {"array"}),
        ({"$ref": "#/$defs/loop"}, ANY),
        ({"$ref": "#/nowhere"}, ANY),
        ({"description": "anything"}, ANY),
        (True, ANY),
    ],
)
def test_the_types_of_a_parameter_are_those_that_its_schema_allows(schema: Any, types: set[str]) -> None:
    root = {"$defs": {"a": {"type": "boolean"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert list_types(schema, root) == types


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", ["integer"], 5),
        ("5", ["string"], "5"),
        ("5", ["string", "integer"], 5),
        ("5", ["string", "null"], "5"),
        ("null", ["string", "null"], None),
        ("None", ["null", "string"], None),
        ("True", ["boolean"], True),
        ("true", ["string", "any"], True),
        ("[1, 2]", ["array"], [1, 2]),
        ("{'a': 'b'}", ["object"], {"a": "b"}),
        ('{"a": NaN}', ["object"], '{"a": NaN}'),
        ("two", ["integer"], "two"),
        ('say "hi"', ["string", "any"], 'say "hi"'),
        ('"quoted"', ["string", "any"], '"quoted"'),
        (" padded ", ["string", "any"], " padded "),
    ],
)
def test_a_value_is_what_its_text_spells_if_the_schema_allows_that(
    text: str, types: list[str], value: Any
) -> None:
    assert json.loads(to_json(text, types)) == value


def write(format: str, text: str) -> str:
    """A call of f with the raw text as its only argument."""
    form, syntax = FORMATS[format].form, FORMATS[format].parameters
    assert syntax is not None
    value = f"{syntax.name[0]}a{syntax.name[1]}{syntax.quote}{text}{syntax.quote}{syntax.end}"
    return f"{form.prefix}{form.begin('f')}{value}{form.tail}{form.suffix}"


@pytest.mark.parametrize("format", ["qwen_xml", "glm", "minimax", "dsml", "gemma"])
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, ["", "a\n</b> \"c\" 'd' {", "[TOOL_CALLS]<|im_end|>"], []),
        ({"enum": ["a b", "<c>"]}, ["a b", "<c>"], ["a", ""]),
        ({"type": "string", "pattern": "^[0-9]+$"}, ["12"], ["a", ""]),
        ({"type": "string", "pattern": "b"}, ["abc"], ["ac"]),
        ({"type": "string", "minLength": 1, "maxLength": 3}, ["ü", "<b>"], ["", "abcd"]),
    ],
)
def test_a_raw_string_is_constrained_by_its_schema(
    format: str, schema: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    made = compile_tag(build_required_calls(FORMATS[format], [tool({"a": schema})], several=False))
    assert not made.left_out
    for text, is_good in [*((text, True) for text in good), *((text, False) for text in bad)]:
        assert made.machine.accepts(write(format, text).encode()) == is_good, text


@pytest.mark.parametrize("keyword", [{"pattern": "(?=a)b", "maxLength": 9}, {"maxLength": 9000}])
def test_what_a_raw_string_can_not_be_held_to_is_checked_in_the_complete_call(
    keyword: dict[str, Any],
) -> None:
    format, limited = FORMATS["qwen_xml"], tool({"a": {"type": "string", **keyword}})
    wanted = build_required_calls(format, [limited], several=False)
    made = compile_tag(wanted, unenforced="annotations")
    assert made.left_out and all(path == f"f#/properties/a/{name}" for name, path in made.left_out)
    loosened = find_partly_enforced([path for _, path in made.left_out])
    assert find_enforced([limited], format, loosened) == frozenset()
    with pytest.raises(NotCoveredError, match="of the function 'f' can't be enforced"):
        compile_tag(wanted, unenforced="refuse")


def test_lengths_that_no_text_has_are_named() -> None:
    limited = tool({"a": {"type": "string", "minLength": 5, "maxLength": 3}})
    with pytest.raises(GrammarError, match=r"'f', at #.*: minLength is 5, but maxLength is 3"):
        compile_tag(build_required_calls(FORMATS["glm"], [limited], several=False))


NESTED = {
    "a": {
        "anyOf": [
            {"type": "array", "items": {"type": "object", "properties": {"b": {"$ref": "#/$defs/text"}}}},
            {"type": "null"},
            {"type": "string"},
        ]
    }
}


def test_nested_values_of_gemma_have_its_own_quotes() -> None:
    wanted = build_required_calls(
        FORMATS["gemma"], [tool(NESTED, **{"$defs": {"text": {"type": "string"}}})], several=False
    )
    machine = compile_tag(wanted).machine
    call = "<|tool_call>call:f{a:%s}<tool_call|>"
    for value in ("null", '<|"|>x<|"|>', "[]", '[{b:<|"|>}],"<|"|>},{}]'):
        assert machine.accepts((call % value).encode()), value
        [delta] = ReplyParser(tools=ToolReading(FORMATS["gemma"], lambda each: True)).push(call % value, True)
        assert isinstance(delta, ToolCallDelta) and json.loads(delta.arguments_fragment)
    for value in ("3", '"x"', '[{"b":<|"|>x<|"|>}]', "[{c:null}]"):
        assert not machine.accepts((call % value).encode()), value


WIDE = {"anyOf": [{"$ref": "#/$defs/wide"}] * 9}
DEEP = {
    f"{at}": {"type": "object", "properties": {each: {"$ref": f"#/$defs/{at + 1}"} for each in "abcd"}}
    for at in range(18)
}


@pytest.mark.parametrize("format", ["gemma", "glm"])
@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "array", "items": True},
        {"anyOf": [{"type": "string"}, True]},
        {"anyOf": True},
        {"type": "string", "anyOf": 5},
        {"type": "object", "properties": {"b": {"type": "string"}}, "required": True},
        {"$ref": "#/$defs/wide"},
        {"$ref": "#/$defs/0"},
    ],
)
def test_a_schema_that_can_not_be_written_out_is_a_problem_with_quotes_and_json_without(
    format: str, schema: Any
) -> None:
    defined = {"wide": WIDE, **DEEP, "18": {"type": "string"}}
    odd = tool({"a": schema}, **{"$defs": defined})
    parameter_types(odd["function"]["parameters"])
    assert find_enforced([odd], FORMATS[format], frozenset()) == ({"f"} if format == "glm" else frozenset())
    if format == "glm":
        build_required_calls(FORMATS[format], [odd], several=False)


@pytest.mark.parametrize("format", ["gemma", "qwen_xml", "lfm2"])
def test_arguments_without_a_form_are_free_unless_the_call_is_required(format: str) -> None:
    odd = tool({"a": {"type": "string"}}, patternProperties={})
    assert find_enforced([odd], FORMATS[format], frozenset()) == frozenset()
    with pytest.raises(ToolError, match=r"'f'.*'patternProperties'"):
        build_required_calls(FORMATS[format], [odd], several=False)


def test_a_typed_parameter_is_a_string_or_another_value() -> None:
    either = tool({"a": {"type": ["string", "integer"]}})
    machine = compile_tag(build_required_calls(FORMATS["dsml"], [either], several=False)).machine
    text = write("dsml", "5")
    number = text.replace('string="true"', 'string="false"')
    assert machine.accepts(text.encode()) and machine.accepts(number.encode())
    assert not machine.accepts(number.replace(">5<", ">x<").encode())
    types = {"f": parameter_types(either["function"]["parameters"])}
    for call, value in ((text, "5"), (number, 5)):
        for enforced in ((), ("f",)):
            reading = ToolReading(
                FORMATS["dsml"], lambda each: True, frozenset(enforced), ("f",), types=types
            )
            [delta] = ReplyParser(tools=reading).push(call, True)
            assert isinstance(delta, ToolCallDelta) and json.loads(delta.arguments_fragment) == {"a": value}


def test_an_undeclared_parameter_has_the_value_that_its_text_spells() -> None:
    given = (("x", "[1]"), ("y", "z"))
    written = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in given)
    call = f"<tool_call>f\n{written}</tool_call>"
    [delta] = ReplyParser(tools=ToolReading(FORMATS["glm"], lambda each: True)).push(call, True)
    assert isinstance(delta, ToolCallDelta)
    assert json.loads(delta.arguments_fragment) == {"x": [1], "y": "z"}
