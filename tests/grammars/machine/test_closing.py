"""The shortest text that ends a reply."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from arbora.grammars.machine.closing import Closing
from arbora.grammars.machine.stack_automaton import StackAutomaton
from arbora.grammars.regex.byte_automaton import compile_regex
from arbora.runtime.automaton_format import STACK_DEPTH
from hypothesis import given, settings
from hypothesis import strategies as st
from json_automata import compile_schema, steps, walked

SCHEMAS: list[Any] = [
    True,
    {
        "type": "object",
        "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 90}},
        "required": ["a"],
    },
    {"type": "array", "items": {"enum": ["red", "re", 10]}, "minItems": 2},
    {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            }
        },
        "$ref": "#/$defs/tree",
        "required": ["kids"],
    },
    {
        "type": "object",
        "additionalProperties": {"type": "string", "pattern": "^[a-c]{2}é$"},
        "minProperties": 1,
    },
    {"anyOf": [{"const": "a long constant"}, {"type": "number", "minimum": 5.5}, {"type": "null"}]},
]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "é": {"const": 1}, "mail": {}},
    "required": ["name", "é", "id"],
}
UNORDERED: list[Any] = [
    PERSON,
    {**PERSON, "maxProperties": 4, "additionalProperties": PERSON},
    {"anyOf": [{"type": "array", "items": PERSON, "minItems": 1}, PERSON, {"const": {"a": PERSON}}]},
    {
        "type": "object",
        "oneOf": [
            {"properties": {"k": {"const": k}, "v": {"type": t}}, "required": ["k", "w"]}
            for k, t in (("i", "integer"), ("s", "object"))
        ],
        "properties": {"p": PERSON},
        "required": ["p"],
    },
]
MACHINES = [compile_schema(schema) for schema in SCHEMAS]
CLOSINGS = [Closing(machine) for machine in MACHINES]
UNORDERED_MACHINES = [compile_schema(schema, property_order="any") for schema in UNORDERED]
UNORDERED_CLOSINGS = [Closing(machine) for machine in UNORDERED_MACHINES]
number = st.integers(0, len(SCHEMAS) - 1)
SEARCHED = 3


def at(machine: StackAutomaton, text: bytes) -> tuple[int, list[int]]:
    stack = list(machine.bottom)
    return machine.walk(machine.start, stack, text), stack


def ends_within(machine: StackAutomaton, state: int, stack: list[int], length: int) -> bool:
    """Whether any text of so many bytes ends the reply."""
    if machine.accepting[state] and not stack:
        return True
    after = {(target, tuple(below)) for target, below in steps(machine, state, stack).values()}
    return length > 0 and any(
        ends_within(machine, target, list(below), length - 1) for target, below in after
    )


@settings(max_examples=60, deadline=None)
@given(which=number, seed=st.integers(0, 10**6), share=st.floats(0, 1))
def test_it_ends_a_reply_from_anywhere_with_a_valid_value(which: int, seed: int, share: float) -> None:
    text = walked(MACHINES[which], random.Random(seed), 25)
    begun = text[: int(share * len(text))]
    place = at(MACHINES[which], begun)
    closing = CLOSINGS[which].text(*place)
    assert closing is not None and len(closing) <= len(text) - len(begun)
    assert CLOSINGS[which].length(*place) == len(closing)
    jsonschema.validate(json.loads(begun + closing), SCHEMAS[which])


def begun_reply(machine: StackAutomaton, chance: random.Random, length: int) -> bytes:
    """A random beginning, of which every third byte is a mark where one may come."""
    text = bytearray()
    state, stack = machine.start, list[int]()
    while len(text) < length and (allowed := steps(machine, state, stack)):
        marks = [byte for byte in b'":,{[}]' if byte in allowed]
        byte = chance.choice(marks if marks and chance.random() < 0.3 else list(allowed))
        state, stack = allowed[byte]
        text.append(byte)
    return bytes(text)


@settings(max_examples=100, deadline=None)
@given(
    which=st.integers(0, len(UNORDERED) - 1),
    chance=st.randoms(use_true_random=False),
    length=st.integers(0, 90),
)
def test_an_unordered_object_closes_with_its_missing_names(
    which: int, chance: random.Random, length: int
) -> None:
    machine, closing = UNORDERED_MACHINES[which], UNORDERED_CLOSINGS[which]
    begun = begun_reply(machine, chance, length)
    place = at(machine, begun)
    text = closing.text(*place)
    assert text is not None and len(text) == closing.length(*place)
    jsonschema.validate(json.loads(begun + text), UNORDERED[which])


def test_an_unordered_object_closes_with_each_missing_name_once_and_the_nearest_first() -> None:
    machine, closing = UNORDERED_MACHINES[0], UNORDERED_CLOSINGS[0]
    assert closing.text(*at(machine, b'{"mail":0,"i')) == b'd":0,"\xc3\xa9":1,"name":""}'


@settings(max_examples=40, deadline=None)
@given(which=number, seed=st.integers(0, 10**6), share=st.floats(0, 1))
def test_no_text_is_shorter(which: int, seed: int, share: float) -> None:
    text = walked(MACHINES[which], random.Random(seed), 12)
    state, stack = at(MACHINES[which], text[: int(share * len(text))])
    closing = CLOSINGS[which].text(state, stack)
    assert closing is not None
    searched = min(len(closing) - 1, SEARCHED)
    assert searched < 0 or not ends_within(MACHINES[which], state, stack, searched)


@pytest.mark.parametrize(
    ("regex", "begun", "closing"),
    [
        ("(ab|abcdef|a{9}b)", b"abc", b"def"),
        ("(ab|abcdef|a{9}b)", b"a", b"b"),
        ("x*", b"xx", b""),
        ("é[0-9]{4}", b"\xc3", b"\xa90000"),
    ],
)
def test_it_takes_the_shortest_way(regex: str, begun: bytes, closing: bytes) -> None:
    machine = compile_regex(regex)
    assert Closing(machine).text(*at(machine, begun)) == closing


def test_it_is_not_known_where_nothing_fits_on_the_stack_any_more() -> None:
    nested: Any = {"const": 1}
    for _ in range(4):
        nested = {"type": "array", "items": nested, "minItems": 1}
    machine = compile_schema(nested, whitespace=(",", ":"))
    assert Closing(machine).text(machine.start, []) == b"[[[[1]]]]"
    assert Closing(machine).text(machine.start, [0] * STACK_DEPTH) is None
