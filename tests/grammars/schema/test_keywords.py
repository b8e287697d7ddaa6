"""Each JSON schema keyword with values that it allows and values that it forbids."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from arbora.grammars import GrammarError
from arbora.grammars.errors import NotCoveredError, TooLargeError
from json_automata import compact, compile_schema

NODE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
    "required": ["value"],
    "additionalProperties": False,
}

CASES: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("anything", True, [1, None, "a", [[{}]], {"a": {"b": []}}, -1.5e-10], []),
    ("types", {"type": ["integer", "null"]}, [0, -12, None], [1.5, "1", [], {}, True]),
    ("number", {"type": "number"}, [0, -1.25, 1e300], ["1", None]),
    ("enum", {"enum": ["a", 1.5, None, [1, {"x": 2}]]}, ["a", 1.5, None, [1, {"x": 2}]], ["b", 1, [1], {}]),
    ("const", {"const": {"k": [True]}}, [{"k": [True]}], [{}, {"k": [False]}, {"k": [True], "l": 1}]),
    ("minimum", {"minimum": -1.5}, [-1.5, 0, 7, "x"], [-1.6, -2]),
    ("maximum", {"maximum": 10}, [10, -11, 9.99], [10.01, 100]),
    ("exclusive bounds", {"exclusiveMinimum": 0, "exclusiveMaximum": 1}, [0.5], [0, 1, -0.0, -1]),
    ("draft 4 bounds", {"minimum": 0, "exclusiveMinimum": True}, [0.1], [0]),
    ("multipleOf", {"multipleOf": 7}, [0, 14, -21], [1, 15, 7.5]),
    ("decimal multipleOf", {"multipleOf": 0.25}, [0.25, 1, -1.75], [0.1, 1.3]),
    ("minLength", {"minLength": 2}, ["ab", "éé", "\n\U0001f600", 1], ["", "a", "\U0001f600"]),
    ("maxLength", {"maxLength": 2}, ["", "ab", "\U0001f600\U0001f600"], ["abc"]),
    ("pattern", {"pattern": "^a+$|b"}, ["aa", "xbx"], ["", "ax"]),
    ("pattern with look-ahead", {"pattern": "^(?!ab)(?=.*z)[a-z]+$"}, ["az", "bz"], ["abz", "a", "z1"]),
    ("format", {"format": "date"}, ["2024-02-29", 3], ["2023-02-29", "2024-1-1"]),
    ("ipv6", {"format": "ipv6"}, ["::1", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4"], ["1:2", ":::", "1::2::3"]),
    ("items", {"items": {"type": "integer"}}, [[], [1, 2], {}], [["a"], [1, "a"]]),
    (
        "prefixItems",
        {"prefixItems": [{"const": 1}, {"const": 2}], "items": False},
        [[], [1], [1, 2]],
        [[2], [1, 2, 3]],
    ),
    ("draft 7 items", {"items": [{"const": 1}], "additionalItems": {"const": 2}}, [[1, 2, 2]], [[1, 1]]),
    ("minItems", {"type": "array", "minItems": 2}, [[1, 2]], [[], [1]]),
    ("maxItems", {"type": "array", "maxItems": 1}, [[], [1]], [[1, 2]]),
    ("contains", {"contains": {"type": "string"}}, [["a"], [1, "a", 2]], [[], [1]]),
    (
        "minContains and maxContains",
        {"contains": {"const": 1}, "minContains": 2, "maxContains": 3},
        [[1, 1], [1, 0, 1, 1]],
        [[1], [1, 1, 1, 1]],
    ),
    ("uniqueItems of one", {"uniqueItems": True, "maxItems": 1}, [[], [1]], [[1, 2]]),
    (
        "properties",
        {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
        [{}, {"a": 1}, {"b": ""}, {"a": 1, "b": "", "z": []}, 5],
        [{"a": ""}, {"b": 1}],
    ),
    ("required", {"type": "object", "required": ["a"]}, [{"a": 1}, {"a": 1, "b": 2}], [{}, {"b": 1}]),
    (
        "additionalProperties",
        {"properties": {"a": {}}, "additionalProperties": {"type": "null"}},
        [{"a": 1}, {"a": 1, "ab": None}, {"b": None}],
        [{"b": 1}],
    ),
    (
        "patternProperties",
        {
            "patternProperties": {"^x": {"type": "integer"}, "y$": {"minimum": 5}},
            "additionalProperties": False,
        },
        [{"x": 1}, {"xy": 5}, {"y": "s"}],
        [{"x": "s"}, {"xy": 4}, {"y": 4}, {"z": 1}],
    ),
    ("propertyNames", {"propertyNames": {"maxLength": 2}}, [{}, {"ab": 1}], [{"abc": 1}]),
    ("minProperties", {"type": "object", "minProperties": 2}, [{"a": 1, "b": 1}], [{}, {"a": 1}]),
    ("maxProperties", {"type": "object", "maxProperties": 1}, [{}, {"a": 1}], [{"a": 1, "b": 1}]),
    ("dependentRequired", {"dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
    (
        "dependentSchemas",
        {"properties": {"a": {}, "b": {}}, "dependentSchemas": {"a": {"properties": {"b": {"const": 1}}}}},
        [{"b": 2}, {"a": 1}, {"a": 1, "b": 1}],
        [{"a": 1, "b": 2}],
    ),
    ("allOf", {"allOf": [{"minimum": 1}, {"maximum": 2}, {"type": "integer"}]}, [1, 2], [0, 3, 1.5]),
    ("anyOf", {"anyOf": [{"type": "null"}, {"minimum": 5}]}, [None, 5, "x"], [4]),
    ("oneOf", {"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, [2, 3, 4], [6, 1, "in both"]),
    ("not", {"not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}, 1]),
    (
        "anyOf over objects",
        {
            "type": "object",
            "anyOf": [
                {"properties": {"k": {"const": "i"}, "v": {"type": "integer"}}},
                {"properties": {"k": {"enum": ["s", "i"]}, "v": {"type": "string"}}},
            ],
        },
        [{"k": "i", "v": 1}, {"k": "i", "v": ""}, {"k": "s", "v": ""}, {"k": "s"}, {}],
        [{"k": "s", "v": 1}, {"k": "x", "v": 1}, {"k": "i", "v": None}],
    ),
    (
        "oneOf over objects",
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    (
        "if",
        {
            "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
            "then": {"required": ["b"]},
            "else": {"properties": {"c": {"type": "null"}}},
        },
        [{"a": 1, "b": 1}, {"a": 2}, {"a": 2, "c": None}, 3],
        [{"a": 1}, {"a": 2, "c": 1}],
    ),
    (
        "a recursive $ref",
        {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
        [{"value": 1}, {"value": 1, "next": {"value": 2, "next": {"value": 3}}}],
        [{}, {"value": 1, "next": {}}, {"next": {"value": 1}}],
    ),
    (
        "$anchor and $id",
        {
            "$id": "http://x.test/root",
            "$defs": {"a": {"$anchor": "here", "type": "null"}},
            "$ref": "root#here",
        },
        [None],
        [1],
    ),
    (
        "an $id that is relative to another",
        {
            "$id": "http://x.test/root",
            "$ref": "nested/a",
            "$defs": {
                "a": {"$id": "nested/a", "$ref": "./b"},
                "b": {"$id": "nested/b", "type": "null"},
            },
        },
        [None],
        [1],
    ),
    (
        "a pointer into a URN",
        {
            "$ref": "urn:x:1",
            "$defs": {"a": {"$id": "urn:x:1", "$defs": {"b": {"type": "null"}}, "$ref": "#/$defs/b"}},
        },
        [None],
        [1],
    ),
    (
        "a value with a member $anchor",
        {
            "$defs": {"a": {"enum": [{"$anchor": "here"}]}, "enum": {"$anchor": "here", "type": "null"}},
            "$ref": "#here",
        },
        [None],
        [{"$anchor": "here"}],
    ),
    (
        "a recursion without an end",
        {
            "properties": {"a": {"$ref": "#/$defs/b"}},
            "$defs": {"b": {"type": "array", "items": {"$ref": "#/$defs/b"}, "minItems": 1}},
        },
        [{}, {"b": 1}],
        [{"a": []}, {"a": [[]]}],
    ),
    (
        "unevaluatedProperties beside other schemas",
        {
            "properties": {"a": True},
            "allOf": [{"properties": {"b": True}}],
            "anyOf": [
                {"properties": {"c": {"const": 1}}, "required": ["c"]},
                {"patternProperties": {"^d": True}},
            ],
            "unevaluatedProperties": False,
        },
        [{}, {"a": 1, "b": 1}, {"c": 1}, {"c": 1, "d": 2}, {"da": 1}],
        [{"c": 2}, {"e": 1}, {"a": 1, "ca": 1}],
    ),
    (
        "unevaluatedProperties after a condition",
        {
            "if": {"properties": {"k": {"const": 1}}, "required": ["k"]},
            "then": {"properties": {"x": True}},
            "else": {"properties": {"y": True}},
            "unevaluatedProperties": {"type": "null"},
        },
        [{"k": 1, "x": 2}, {"y": 1}, {"k": None, "x": None}],
        [{"k": 1, "y": 1}, {"k": 2}, {"x": 1}],
    ),
    (
        "additionalItems without a list of items, which evaluate nothing",
        {"type": "array", "additionalItems": {}, "unevaluatedItems": {"type": "null"}},
        [[], [None]],
        [[1], [None, 1]],
    ),
    (
        "unevaluatedItems",
        {
            "prefixItems": [True],
            "anyOf": [{"prefixItems": [True, {"const": 2}]}, True],
            "unevaluatedItems": False,
        },
        [[], [1], [1, 2]],
        [[1, 3], [1, 2, 3]],
    ),
    (
        "a $dynamicRef to one anchor",
        {"$dynamicAnchor": "node", "type": "array", "items": {"$dynamicRef": "#node"}},
        [[], [[], [[]]]],
        [[1], [[2]]],
    ),
    ("names with escapes", {"properties": {'a"é\n': {"const": 1}}}, [{'a"é\n': 1}, {"a": 2}], [{'a"é\n': 2}]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "allowed", "forbidden"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_a_keyword_allows_and_forbids(schema: Any, allowed: list[Any], forbidden: list[Any]) -> None:
    automaton = compile_schema(schema)
    for value in allowed:
        assert automaton.accepts(compact(value)), value
        assert automaton.accepts(json.dumps(value, separators=(",", ":")).encode()), value
    assert [value for value in forbidden if automaton.accepts(compact(value))] == []


@pytest.mark.parametrize(
    ("schema", "allowed", "forbidden"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_the_cases_agree_with_json_schema(schema: Any, allowed: list[Any], forbidden: list[Any]) -> None:
    is_old = isinstance(schema, dict) and (
        "additionalItems" in schema or schema.get("exclusiveMinimum") is True
    )
    if isinstance(schema, dict) and ("format" in schema or is_old):
        return
    validator = jsonschema.Draft202012Validator(schema)
    assert all(validator.is_valid(value) for value in allowed)
    assert not any(validator.is_valid(value) for value in forbidden)


@pytest.mark.parametrize(
    "text",
    [
        rb'"\u0061"', rb'"\ud83d\ude00"', rb'"\/\b\f\n\r\t\"\\"', '"\U0001f600"'.encode(), b'"\x7f"',
    ],
)  # fmt: skip
def test_a_string_may_be_written_with_every_escape(text: bytes) -> None:
    assert compile_schema('{"type":"string"}').accepts(text)


@pytest.mark.parametrize(
    "text", [b'"\n"', rb'"\x"', rb'"\ud83d"', b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', rb'"\ude00"', b'"']
)
def test_invalid_json_strings_are_refused(text: bytes) -> None:
    assert not compile_schema('{"type":"string"}').accepts(text)


@pytest.mark.parametrize(
    "text", [b"01", b"+1", b".5", b"1.", b"1e", b"--1", b"-", b"NaN", b"0x1", b"1" * 21, b'{"a":1', b"[1,]"]
)
def test_invalid_json_is_refused(text: bytes) -> None:
    assert not compile_schema("true").accepts(text)


def test_a_declared_name_never_repeats_however_it_is_written() -> None:
    automaton = compile_schema('{"properties":{"é":{},"b":{}}}')
    assert automaton.accepts('{"é":1,"b":2,"c":3}'.encode())
    for repeated in (
        '{"é":1,"é":2}',
        '{"é":1,"\\u00e9":2}',
        '{"\\u00e9":1,"é":2}',
        '{"b":1,"b":2}',
        '{"b":1,"\\u0062":2}',
    ):
        assert not automaton.accepts(repeated.encode()), repeated


def test_separators_are_those_of_the_spec() -> None:
    automaton = compile_schema('{"type":"object"}', whitespace=(", ", ": "))
    assert automaton.accepts(b'{"a": [1, 2], "b": {}}')
    assert not automaton.accepts(b'{"a":1}')


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"format": "iban"}}}, "#/properties/a/format"),
        ({"items": {"uniqueItems": True}}, "#/items/uniqueItems"),
        ({"anyOf": [{"$dynamicRef": "#x"}]}, "#/anyOf/0/$dynamicRef"),
        (
            {
                "$dynamicRef": "#x",
                "$defs": {"a": {"$dynamicAnchor": "x"}, "b": {"$id": "b", "$dynamicAnchor": "x"}},
            },
            "#/$dynamicRef",
        ),
        ({"properties": {"a/b": {"pattern": r"(a)\1"}}}, "#/properties/a~1b/pattern"),
        ({"$ref": "http://elsewhere.test/x"}, "#/$ref"),
        ({"contains": {}, "unevaluatedItems": False}, "#/unevaluatedItems"),
    ],
)
def test_a_keyword_without_an_automaton_is_named_with_its_path(schema: Any, path: str) -> None:
    with pytest.raises(NotCoveredError) as caught:
        compile_schema(schema)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "schema", [{"allOf": [{"type": "null"}, {"type": "string"}]}, False, {"enum": [1], "minimum": 2}]
)
def test_a_schema_without_a_value_is_refused(schema: Any) -> None:
    with pytest.raises(GrammarError, match="allows no value"):
        compile_schema(schema)


def test_a_schema_past_a_limit_is_too_large() -> None:
    with pytest.raises(TooLargeError):
        compile_schema({"items": {"type": "string"}, "maxItems": 50_000, "type": "array"})


def test_a_length_that_no_automaton_counts_is_named() -> None:
    with pytest.raises(NotCoveredError, match="'minLength' at #/minLength"):
        compile_schema('{"minLength": 100000}')


def test_lists_that_have_no_string_in_common_leave_their_other_values() -> None:
    lists = [{"enum": [False, "a"]}, {"enum": [False, "b"]}]
    automaton = compile_schema({"oneOf": [{"allOf": lists}, {"type": "number"}]})
    assert [text for text in (b"false", b"7", b'"a"', b'"b"') if automaton.accepts(text)] == [b"false", b"7"]


@pytest.mark.parametrize("order", ["xy", "yx"])
def test_schemas_differ_by_a_property_named_like_an_annotation(order: str) -> None:
    values = {"x": {"dependentRequired": {"title": ["a"]}}, "y": {"dependentRequired": {}}}
    schema = {"type": "object", "properties": {name: values[name] for name in order}}
    automaton = compile_schema(schema)
    assert not automaton.accepts(b'{"x":{"title":1}}')
    assert automaton.accepts(b'{"y":{"title":1}}')
