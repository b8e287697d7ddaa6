"""The order of an object's properties, as declared or free."""

from __future__ import annotations

import random
from typing import Any

import pytest
from arbora.runtime.automaton_format import DEAD
from arbora.runtime.grammar_spec import PropertyOrder
from json_automata import compile_schema, walked


def test_properties_may_come_in_any_order() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "ab": {"properties": {"x": {}, "y": {}}}, "c": True},
        "required": ["ab"],
        "additionalProperties": False,
    }
    automaton = compile_schema(schema, property_order="any")
    for text in ('{"ab":{"y":1,"x":2},"a":1}', '{"c":[],"a":1,"ab":{}}', '{"ab":{"z":0,"x":2}}'):
        assert automaton.accepts(text.encode()), text
    for text in (
        '{"a":1}',
        '{"ab":{},"ab":{}}',
        '{"a":1,"ab":{},"a":1}',
        '{"ab":{"x":1,"x":1}}',
        '{"ab":{},"d":1}',
    ):
        assert not automaton.accepts(text.encode()), text


def test_a_name_is_not_begun_if_all_names_with_its_beginning_were_seen() -> None:
    schema = {"properties": {"aa": {}, "ab": {}, "b": {}}, "additionalProperties": False, "type": "object"}
    automaton = compile_schema(schema, property_order="any")
    state, stack = automaton.start, list[int]()
    for byte in b'{"ab":1,"aa":1,"':
        state = automaton.step(state, stack, byte)
    assert [chr(byte) for byte in range(256) if automaton.step(state, list(stack), byte) >= 0] == ["b"]
    for byte in b'b":1':
        state = automaton.step(state, stack, byte)
    assert automaton.step(state, list(stack), ord(",")) < 0


@pytest.mark.parametrize("count", [31, 32, 62, 123])
def test_properties_of_large_objects_may_come_in_any_order(count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "required": names[1:],
        "additionalProperties": False,
    }
    automaton = compile_schema(schema, property_order="any")
    chance = random.Random(count)
    for _ in range(5):
        chance.shuffle(names)
        members = [f'"{name}":1' for name in names]
        assert automaton.accepts(f"{{{','.join(members)}}}".encode())
        assert not automaton.accepts(f"{{{','.join([*members, members[0]])}}}".encode())
        without = [member for member in members if not member.startswith(f'"n{count - 1}"')]
        assert not automaton.accepts(f"{{{','.join(without)}}}".encode())
        state, stack = automaton.start, list[int]()
        state = automaton.walk(state, stack, f"{{{','.join(members[:-1])},".encode())
        (left,) = set(names) - set(names[:-1])
        assert automaton.walk(state, list(stack), f'"{left}'.encode()) != DEAD
        assert automaton.walk(state, list(stack), b'"' + names[0].encode() + b'"') == DEAD


def test_a_large_object_may_contain_large_objects() -> None:
    large = {f"n{number}": {"$ref": "#"} for number in range(40)}
    schema = {"type": "object", "properties": large, "additionalProperties": False, "required": ["n35"]}
    schema = {"anyOf": [schema, {"type": "null"}]}
    automaton = compile_schema(schema, property_order="any")
    inner = '{"n39":null,"n35":null,"n0":null}'
    assert automaton.accepts(f'{{"n1":{inner},"n35":{inner}}}'.encode())
    assert not automaton.accepts(f'{{"n1":{inner},"n0":{inner}}}'.encode())


def test_alternatives_follow_properties_in_any_order() -> None:
    kinds = [
        {"properties": {"k": {"const": k}, "v": {"type": t}}, "required": ["k"]}
        for k, t in (("i", "integer"), ("s", "string"))
    ]
    automaton = compile_schema({"type": "object", "oneOf": kinds}, property_order="any")
    for text in ('{"v":1,"k":"i"}', '{"k":"s","v":""}', '{"v":"","k":"s"}', '{"w":0,"v":"","k":"s"}'):
        assert automaton.accepts(text.encode()), text
    for text in ('{"v":1,"k":"s"}', '{"v":""}', '{"v":null,"k":"i"}', '{"v":1,"k":"i","v":1}'):
        assert not automaton.accepts(text.encode()), text


@pytest.mark.parametrize(
    "schema",
    [
        {"const": {"a": None, "b": 1}},
        {"type": "object", "required": ["a", "b"], "maxProperties": 3},
        {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"], "maxProperties": 1},
        {"not": {"minProperties": 3}, "type": "object", "required": ["c"]},
    ],
)
def test_optional_names_leave_enough_of_the_maximum_for_required_names(schema: Any) -> None:
    automaton = compile_schema(schema, property_order="any")
    for seed in range(40):
        walked(automaton, random.Random(seed), 10)  # it asserts that it doesn't get stuck


KIND_FIRST = {"type": "object", "properties": {"kind": {"type": "integer"}, "x": {"type": "integer"}}}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"required": ["x"]},
        {"anyOf": [{"required": ["x"]}, {"required": ["kind"]}]},
        {"dependentRequired": {"x": ["kind"]}},
        {"if": {"properties": {"x": {"const": 1}}}, "then": {"required": ["kind"]}},
        {"allOf": [{"required": ["x"]}]},
        {"not": {"required": ["x", "zz"]}},
    ],
    ids=lambda fields: next(iter(fields), "alone"),
)
def test_properties_come_in_their_declared_order_even_if_other_keywords_name_them(fields: Any) -> None:
    automaton = compile_schema({**KIND_FIRST, **fields})
    assert automaton.accepts(b'{"kind":1,"x":1}')
    assert not automaton.accepts(b'{"x":1,"kind":1}')


@pytest.mark.parametrize("several", ["allOf", "anyOf"])
def test_a_name_required_by_another_schema_comes_at_its_declared_position(several: str) -> None:
    automaton = compile_schema({several: [{"type": "object", "required": ["x"]}, KIND_FIRST]})
    assert automaton.accepts(b'{"kind":1,"x":1}')
    assert not automaton.accepts(b'{"x":1,"kind":1}')


NAMES_BY_PATTERN = [
    {"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False},
    {"propertyNames": {"pattern": "^x-"}, "additionalProperties": {"type": "integer"}},
    {
        "properties": {"name": {"type": "string"}},
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": False,
    },
]


@pytest.mark.parametrize("schema", NAMES_BY_PATTERN)
@pytest.mark.parametrize("order", ["schema", "any"])
def test_a_name_that_no_pattern_completes_is_not_begun(
    schema: dict[str, object], order: PropertyOrder
) -> None:
    automaton = compile_schema({"type": "object", **schema}, property_order=order)
    assert automaton.accepts(b'{"x-a":1}')
    for beginning in (b'{"I', b'{"x_', b'{"X'):
        assert automaton.walk(automaton.start, [], beginning) == DEAD
