"""Tool calls as structural tags: every call that a format writes, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
from arbora.frontend.core.tools.families import FORMATS
from arbora.frontend.core.tools.tool_grammar import (
    ToolError,
    build_calls_or_answer,
    build_optional_calls,
    build_required_calls,
    check_unenforceable,
    find_enforced,
    find_partly_enforced,
)
from arbora.grammars.errors import GrammarError, NotCoveredError
from arbora.grammars.schema.compile import CompiledSchema
from arbora.runtime.grammar_spec import Unenforced
from json_automata import compile_tag

CITY = {"type": "string", "maxLength": 9}


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def taking(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


WEATHER = tool("weather", parameters=taking({"city": CITY, "days": {"type": "integer"}}, "city"))
CLOCK = tool("clock")
TOOLS = [WEATHER, CLOCK]
CALLS: dict[str, tuple[str, str]] = {
    "hermes": (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
    ),
    "llama_json": (
        '{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}',
        '{"name": "clock", "parameters": {}}',
    ),
    "pythonic": ('[weather(city="Oslo", days=2)]', "[clock()]"),
    "mistral": (
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}]',
        '[TOOL_CALLS] [{"name": "clock", "arguments": {}}]',
    ),
    "mistral_named": (
        '[TOOL_CALLS]weather[ARGS]{"city": "Oslo", "days": 2}',
        "[TOOL_CALLS]clock[ARGS]{}",
    ),
}
BOTH: dict[str, str] = {
    "hermes": "\n".join(CALLS["hermes"]),
    "pythonic": '[weather(city="Oslo", days=2), clock()]',
    "mistral": ", ".join(CALLS["mistral"]).replace("], [TOOL_CALLS] [", ", "),
    "mistral_named": "".join(CALLS["mistral_named"]),
}


def compiled(format: dict[str, Any], unenforced: Unenforced = "refuse") -> CompiledSchema:
    return compile_tag(format, unenforced=unenforced)


def accepts(format: dict[str, Any], *texts: str) -> list[bool]:
    machine = compiled(format).machine
    return [machine.accepts(text.encode()) for text in texts]


@pytest.mark.parametrize("dialect", list(CALLS))
def test_a_required_reply_is_a_call_with_its_tools_arguments(dialect: str) -> None:
    weather, clock = CALLS[dialect]
    wanted = build_required_calls(FORMATS[dialect], TOOLS, several=False)
    assert accepts(wanted, weather, clock) == [True, True]
    wrong = [weather.replace('"Oslo"', "5"), weather.replace("weather", "other"), weather[:-1]]
    others = ["", "Hello", f"{weather}.", f" {clock}", clock.replace("clock", "weather")]
    assert not any(accepts(wanted, *wrong, *others))


@pytest.mark.parametrize("dialect", list(BOTH))
def test_several_calls_are_allowed_unless_the_request_says_one(dialect: str) -> None:
    format, both = FORMATS[dialect], BOTH[dialect]
    assert accepts(build_required_calls(format, TOOLS, several=True), both) == [True]
    assert accepts(build_required_calls(format, TOOLS, several=False), both) == [False]
    assert accepts(build_optional_calls(format, TOOLS, several=True), both) == [True]
    assert accepts(build_optional_calls(format, TOOLS, several=False), both) == [False]


@pytest.mark.parametrize("dialect", list(CALLS))
def test_an_optional_call_is_free_text_or_a_whole_call(dialect: str) -> None:
    weather, clock = CALLS[dialect]
    wanted = build_optional_calls(FORMATS[dialect], TOOLS, several=True)
    assert all(accepts(wanted, "", "Grüße, {[", weather, clock))
    assert not any(accepts(wanted, weather.replace('"Oslo"', "5"), weather[:-1]))


@pytest.mark.parametrize("dialect", ["hermes", "mistral", "mistral_named"])
def test_a_tag_begins_a_call_after_any_text(dialect: str) -> None:
    weather, _ = CALLS[dialect]
    wanted = build_optional_calls(FORMATS[dialect], TOOLS, several=True)
    assert accepts(wanted, f"I look. {weather}", f"I look. {weather[:-4]}") == [True, False]


@pytest.mark.parametrize("dialect", ["llama_json", "pythonic"])
def test_without_a_tag_only_the_beginning_of_a_reply_is_a_call(dialect: str) -> None:
    weather, _ = CALLS[dialect]
    wanted = build_optional_calls(FORMATS[dialect], TOOLS, several=True)
    broken = weather.replace('"Oslo"', "5")
    assert accepts(wanted, broken, f"So: {broken}", f"\n\n{weather}") == [False, True, True]


def test_other_json_may_begin_a_reply_of_a_model_that_writes_calls_as_json() -> None:
    wanted = build_optional_calls(FORMATS["llama_json"], TOOLS, several=True)
    assert all(accepts(wanted, '{"name": "Ada"}', '{"name": "weather"}', "[1, 2]"))


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("llama_json", "<|python_tag|>" + CALLS["llama_json"][0]),
        ("pythonic", f"Yes. <|python_start|>{BOTH['pythonic']}<|python_end|>"),
    ],
)
def test_an_optional_tag_counts_where_the_model_writes_it(dialect: str, text: str) -> None:
    wanted = build_optional_calls(FORMATS[dialect], TOOLS, several=True)
    assert accepts(wanted, text, text.replace('"Oslo"', "5")) == [True, False]


def test_a_python_call_may_omit_optional_arguments() -> None:
    properties = {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"$ref": "#/$defs/d"}}
    parameters = taking(properties, "b", **{"$defs": {"d": {"enum": ["x"]}}})
    wanted = build_required_calls(FORMATS["pythonic"], [tool("f", parameters=parameters)], several=False)
    good = ["[f(b=true)]", "[f(a=1, b=true)]", '[f(b=false, c="x")]', '[f(a=1, b=true, c="x")]']
    bad = ["[f()]", "[f(a=1)]", "[f(b=true, a=1)]", "[f(b=true,)]", '[f(b=true, c="y")]', "[f(, b=true)]"]
    assert all(accepts(wanted, *good)) and not any(accepts(wanted, *bad))


UNCOVERED = tool("f", parameters=taking({"a": {"type": "array", "uniqueItems": True}}))


def test_arguments_that_can_not_be_enforced_are_any_object_unless_the_tool_is_strict() -> None:
    format = FORMATS["hermes"]
    made = compiled(build_optional_calls(format, [UNCOVERED, CLOCK], several=True))
    assert [path.partition("#")[0] for _, path in made.left_out] == ["f"]
    loosened = find_partly_enforced([path for _, path in made.left_out])
    assert find_enforced([UNCOVERED, CLOCK], format, loosened) == {"clock"}
    call = '<tool_call>\n{"name": "f", "arguments": {"b": 1}}\n</tool_call>'
    assert made.machine.accepts(call.encode())
    strict = tool("f", strict=True, parameters=UNCOVERED["function"]["parameters"])
    with pytest.raises(NotCoveredError, match=r"uniqueItems of the function 'f'"):
        compiled(build_optional_calls(format, [strict, CLOCK], several=True))
    with pytest.raises(NotCoveredError, match="uniqueItems"):
        compiled(build_required_calls(format, [UNCOVERED], several=True))


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"b": {"type": "strng"}}, "b/type"),
        ({"b": {"items": {"minLength": -1}}}, "b/items/minLength"),
        ({"b": {"anyOf": {}}}, "b/anyOf"),
        ({"b": {"contains": {"pattern": "("}}}, "b/contains/pattern"),
        ({"b": {"$ref": "#/$defs/none"}}, "b/$ref"),
    ],
)
@pytest.mark.parametrize("dialect", list(CALLS))
def test_a_mistake_in_a_schema_is_refused_even_where_it_is_not_enforced(
    dialect: str, wrong: dict[str, Any], path: str
) -> None:
    uncovered = UNCOVERED["function"]["parameters"]["properties"]
    for properties in (wrong, {**uncovered, **wrong}):
        tools = [CLOCK, tool("f", parameters=taking(properties))]
        with pytest.raises(
            GrammarError, match=re.escape(f"#/properties/{path} of the function 'f'")
        ) as caught:
            compiled(build_optional_calls(FORMATS[dialect], tools, several=True))
        assert caught.value.function == "f"


NO_OBJECT: dict[str, Any] = {
    "alternatives": {"anyOf": [{"type": "string"}, {"type": "array"}]},
    "a reference": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "integer"}}},
    "an older draft's reference": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#/definitions/a",
        "definitions": {"a": {"type": "string"}},
    },
    "a list": {"enum": ["a", 1]},
    "nothing": {"not": {}},
}


@pytest.mark.parametrize("kind", list(NO_OBJECT))
@pytest.mark.parametrize("make", [build_required_calls, build_optional_calls])
def test_parameters_that_allow_no_object_are_refused(kind: str, make: Any) -> None:
    wanted = make(FORMATS["hermes"], [tool("f", parameters=NO_OBJECT[kind])], several=True)
    with pytest.raises(GrammarError, match="function 'f', which must allow an object") as caught:
        compiled(wanted)
    assert caught.value.function == "f"


def test_of_parameters_that_allow_other_values_too_arguments_are_an_object() -> None:
    format, nodes = (
        FORMATS["llama_json"],
        {"a": {"anyOf": [taking({"b": CITY}, "b"), {"type": "string"}]}},
    )
    for parameters in (nodes["a"], {"$ref": "#/$defs/a", "$defs": nodes}):
        wanted = build_required_calls(format, [tool("f", parameters=parameters)], several=False)
        texts = ['{"name": "f", "parameters": {"b": "x"}}', '{"name": "f", "parameters": "x"}']
        assert accepts(wanted, *texts) == [True, False]


def test_an_unenforced_keyword_of_a_python_call_is_named_by_its_parameter() -> None:
    format = build_optional_calls(FORMATS["pythonic"], [UNCOVERED], several=True)
    assert compiled(format).left_out == (("parameters", "f#/properties/a"),)


TAGGED = taking(
    {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "n": {"type": "integer"}},
    "tags",
)
A_FILE = taking({"file": {"type": "string", "format": "path"}, "n": {"type": "integer"}}, "file")


def hermes_call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize("make", [build_required_calls, build_optional_calls])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("parameters", "left_out", "call"),
    [
        (TAGGED, ("uniqueItems", "f#/properties/tags/uniqueItems"), '{"tags": ["a", "a"], "n": %s}'),
        (A_FILE, ("format", "f#/properties/file/format"), '{"file": "/srv/a b", "n": %s}'),
    ],
    ids=["unique", "path"],
)
def test_all_of_a_calls_arguments_is_enforced_except_checked_keywords_and_annotations(
    make: Any, strict: bool, parameters: Any, left_out: tuple[str, str], call: str
) -> None:
    wanted = make(FORMATS["hermes"], [tool("f", parameters=parameters, strict=strict)], several=False)
    made = compiled(wanted, unenforced="annotations")
    assert made.left_out == (left_out,)
    assert made.machine.accepts(hermes_call(call % "1").encode())
    assert not made.machine.accepts(hermes_call(call % '"1"').encode())


@pytest.mark.parametrize("parameters", [TAGGED, A_FILE], ids=["unique", "path"])
def test_a_request_to_enforce_everything_is_refused_if_a_keyword_cannot_be_enforced(parameters: Any) -> None:
    wanted = build_required_calls(FORMATS["hermes"], [tool("f", parameters=parameters)], several=False)
    with pytest.raises(NotCoveredError, match="of the function 'f' can't be enforced"):
        compiled(wanted, unenforced="refuse")


def test_a_python_call_that_has_no_form_is_left_free_or_refused() -> None:
    format, odd = FORMATS["pythonic"], tool("f", parameters=taking({"a-b": CITY}))
    assert find_enforced([odd, CLOCK], format, frozenset()) == {"clock"}
    assert accepts(build_optional_calls(format, [odd], several=True), "[f(5)]") == [True]
    with pytest.raises(ToolError, match=r"'f'.*'a-b'"):
        build_required_calls(format, [odd], several=True)
    with pytest.raises(ToolError, match="'a-b'"):
        check_unenforceable(format, [tool("f", strict=True, parameters=odd["function"]["parameters"])])


def test_a_tool_without_a_form_is_only_served_if_its_calls_can_be_checked() -> None:
    format = FORMATS["pythonic"]
    check_unenforceable(format, [tool("f", parameters=taking({"a-b": CITY}))])
    check_unenforceable(format, [tool("f", parameters=taking({"a-b": {"pattern": r"\p{L}"}}))])
    check_unenforceable(format, [tool("f", parameters={"type": "object", "anyOf": [{"$ref": "#"}]})])
    for wrong, said in (
        ({"type": "strin"}, 'the value at #/properties/a-b/type makes no sense: "strin"'),
        ({"items": [{"$ref": "#/nowhere"}]}, "the value at #/properties/a-b/items makes no sense: "),
        ({"items": {"$ref": "#/nowhere"}}, "the reference '#/nowhere' leads nowhere"),
    ):
        with pytest.raises(ToolError) as caught:
            check_unenforceable(format, [CLOCK, tool("f", parameters=taking({"a-b": wrong}))])
        assert str(caught.value).startswith(f"The parameters of the function 'f': {said}")
        assert caught.value.function == "f"


@pytest.mark.parametrize(
    "wrong", [{"properties": None}, {"properties": ["a"]}, {"required": None}, {"required": [["a"]]}]
)
def test_a_python_call_whose_parameters_are_not_a_schema_is_unconstrained_or_refused(
    wrong: dict[str, Any],
) -> None:
    format, odd = FORMATS["pythonic"], tool("f", parameters={"type": "object", **wrong})
    assert build_optional_calls(format, [odd], several=True) == {"type": "any_text"}
    with pytest.raises(ToolError, match=f"'f'.*{next(iter(wrong))}"):
        build_required_calls(format, [odd], several=True)


def test_references_within_a_tools_parameters_point_where_they_did() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    tree = tool(
        "tree", parameters=taking({"root": {"$ref": "#/$defs/node"}}, "root", **{"$defs": {"node": node}})
    )
    wanted = build_required_calls(FORMATS["llama_json"], [WEATHER, tree], several=False)
    text = '{"name": "tree", "parameters": {"root": {"next": {"next": {}}}}}'
    assert accepts(wanted, text, text.replace("{}", "1")) == [True, False]


def test_arguments_are_an_object_even_if_the_schema_does_not_say_so() -> None:
    bare = tool("f", parameters={"properties": {"a": {}}})
    wanted = build_required_calls(FORMATS["llama_json"], [bare], several=False)
    texts = ['{"name": "f", "parameters": {"a": 1}}', '{"name": "f", "parameters": 1}']
    assert accepts(wanted, *texts) == [True, False]


@pytest.mark.parametrize(
    ("parameters", "free"),
    [
        (None, False),
        ({}, False),
        ({"type": "object", "properties": {}, "required": [], "title": "f"}, False),
        ({"type": "object", "additionalProperties": True}, True),
        ({"type": "object", "additionalProperties": {}}, True),
        ({"type": "object", "required": ["a"]}, True),
    ],
    ids=str,
)
def test_a_function_that_declares_nothing_takes_no_arguments(parameters: Any, free: bool) -> None:
    format = FORMATS["hermes"]
    bare = tool("f", **({} if parameters is None else {"parameters": parameters}))
    for wanted in (
        build_required_calls(format, [bare], several=False),
        build_optional_calls(format, [bare], several=False),
    ):
        texts = [f'<tool_call>\n{{"name": "f", "arguments": {a}}}\n</tool_call>' for a in ("{}", '{"a": 1}')]
        assert accepts(wanted, *texts)[1] == free
        assert accepts(wanted, texts[0]) == [not free or "required" not in parameters]


ANSWER = {"type": "json_schema", "json_schema": taking({"name": {"type": "string"}}, "name")}


@pytest.mark.parametrize("dialect", [name for name in CALLS if name != "llama_json"])
def test_a_reply_is_calls_or_an_answer_and_nothing_beside(dialect: str) -> None:
    weather, clock = CALLS[dialect]
    wanted = build_calls_or_answer(FORMATS[dialect], TOOLS, ANSWER, several=True)
    texts = ['{"name":"weather"}', weather, clock, BOTH[dialect]]
    assert accepts(wanted, *texts) == [True] * 4
    others = ['{"name":1}', f"Hm. {weather}", f'{{"name":"a"}}{weather}', weather.replace("Oslo", "x" * 10)]
    assert accepts(wanted, *others) == [False] * 4


def test_calls_that_begin_as_the_answer_does_are_refused() -> None:
    format = FORMATS["llama_json"]
    with pytest.raises(GrammarError, match="can't be told apart"):
        compiled(build_calls_or_answer(format, TOOLS, ANSWER, several=True))
    answer = {"type": "const_string", "value": "none"}
    wanted = build_calls_or_answer(format, TOOLS, answer, several=True)
    assert accepts(wanted, "none", CALLS["llama_json"][1], "other") == [True, True, False]


def test_beside_an_answer_a_tool_that_cannot_be_enforced_takes_any_object() -> None:
    wanted = build_calls_or_answer(FORMATS["hermes"], [UNCOVERED], ANSWER, several=True)
    call = '<tool_call>\n{"name": "f", "arguments": {"b": 1}}\n</tool_call>'
    assert accepts(wanted, call, '{"name":"a"}') == [True, True]


def test_beside_an_answer_a_tool_without_a_form_is_not_called() -> None:
    odd = tool("f", parameters=taking({"a-b": CITY}))
    assert build_calls_or_answer(FORMATS["pythonic"], [odd], ANSWER, several=True) == ANSWER
