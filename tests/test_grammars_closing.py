"""The shortest text that ends a reply."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from arbora.grammars.byte_automaton import compile_regex
from arbora.grammars.closing import Closing
from arbora.grammars.schema import SchemaCompiler
from arbora.grammars.stack_automaton import MAX_DEPTH, StackAutomaton
from hypothesis import given, settings
from hypothesis import strategies as st
from json_automata import steps, walked

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
MACHINES = [SchemaCompiler().compile(json.dumps(s), separators=(",", ":")) for s in SCHEMAS]
CLOSINGS = [Closing(machine) for machine in MACHINES]
number = st.integers(0, len(SCHEMAS) - 1)
SEARCHED = 3


def at(machine: StackAutomaton, text: bytes) -> tuple[int, list[int]]:
    stack: list[int] = []
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
    closing = CLOSINGS[which].text(*at(MACHINES[which], begun))
    assert closing is not None and len(closing) <= len(text) - len(begun)
    jsonschema.validate(json.loads(begun + closing), SCHEMAS[which])


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
    machine = SchemaCompiler().compile(json.dumps(nested), separators=(",", ":"))
    assert Closing(machine).text(machine.start, []) == b"[[[[1]]]]"
    assert Closing(machine).text(machine.start, [0] * MAX_DEPTH) is None
