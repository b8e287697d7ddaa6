"""A call that the model wrote of its own accord is checked in bounded time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from arbora.frontend.core.tools.call_syntax import Call
from arbora.frontend.core.tools.schema_mistakes import describe_mistake
from arbora.frontend.core.tools.tool_check import check_against
from counted_calls import at_most_calls

DOUBLING = {
    "$defs": {
        **{f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)},
        "d40": {"type": "object"},
    },
    "$ref": "#/$defs/d0",
}
PAIRS = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
REGEX = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
NAMES = {
    "type": "object",
    "patternProperties": {"^(a+)+$": {"type": "string"}},
    "additionalProperties": False,
}
MANY = {"properties": {"a": {"items": {"enum": list(range(9_000))}}}}
DIALECT = "https://json-schema.org/draft/2020-12/schema"
LARGE = {"type": "object", "properties": {f"p{n}": {"type": "string", "enum": ["a"]} for n in range(20_000)}}
HOSTILE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "references that double": (DOUBLING, {}),
    "elements compared in pairs": (PAIRS, {"a": [{"n": n} for n in range(20_000)]}),
    "a regex that backtracks": (REGEX, {"a": "a" * 60 + "!"}),
    "names that a regex backtracks on": (NAMES, {"a" * 60 + "!": "x"}),
    "a large schema": (LARGE, {"p1": "a"}),
    "values compared with many": (MANY, {"a": [-1] * 9}),
    "a dialect named inside": (
        {"$schema": DIALECT, **DOUBLING, "allOf": [{"$schema": DIALECT, "$ref": "#/$defs/d0"}]},
        {},
    ),
}


def fits(schema: dict[str, Any], arguments: dict[str, Any]) -> bool:
    check = check_against([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    return check(Call("f", json.dumps(arguments)))


@pytest.mark.parametrize("name", list(HOSTILE))
def test_no_schema_makes_a_check_take_long(name: str) -> None:
    schema, arguments = HOSTILE[name]
    with at_most_calls(1_500_000):  # a few tenths of a second
        fits(schema, arguments)
        describe_mistake(schema)


def test_a_call_that_takes_too_long_to_check_is_not_made() -> None:
    assert not fits(DOUBLING, {})
    assert not fits(*HOSTILE["a regex that backtracks"])


def test_many_unique_elements_are_checked_quickly() -> None:
    assert fits(*HOSTILE["elements compared in pairs"])


def test_ordinary_schemas_are_checked_as_before() -> None:
    schema = {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "uniqueItems": True}},
        "required": ["tags"],
        "additionalProperties": False,
        "$defs": {"tag": {"enum": ["a", "b", "c"]}},
    }
    assert fits(schema, {"tags": ["a", "b"]})
    for wrong in ({"tags": ["a", "a"]}, {"tags": ["d"]}, {}, {"tags": [], "more": 1}):
        assert not fits(schema, wrong)


def test_regexes_are_checked() -> None:
    words = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}}}
    assert fits(words, {"a": "abc"}) and not fits(words, {"a": "ABC"})
    names = {
        "patternProperties": {"^x": {"type": "string"}},
        "properties": {"n": {}},
        "additionalProperties": False,
    }
    assert fits(names, {"x1": "a", "n": 1})
    for wrong in ({"x1": 1}, {"y": "a"}):
        assert not fits(names, wrong)
    others = {"patternProperties": {"^x": {}}, "additionalProperties": {"type": "integer"}}
    assert fits(others, {"x": "a", "y": 1}) and not fits(others, {"y": "a"})


def test_a_call_whose_pattern_backtracks_too_long_is_not_made() -> None:
    for name in ("a regex that backtracks", "names that a regex backtracks on"):
        assert not fits(*HOSTILE[name])
    for pattern in ("(x{1000}){1000}", "((x{,100}){1,100}){100}"):
        assert not fits({"properties": {"a": {"pattern": pattern}}}, {"a": "x"})


def test_mistakes_are_still_named() -> None:
    assert describe_mistake({"type": "object", "properties": {"a": {"type": 3}}}) == (
        "the value at #/properties/a/type makes no sense: 3"
    )
    assert describe_mistake({"$ref": "#/$defs/none"}) == "the reference '#/$defs/none' leads nowhere"
    assert describe_mistake({"$ref": "#"}) is None
