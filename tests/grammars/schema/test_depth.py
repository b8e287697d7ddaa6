"""Nesting: a reply near the end of the stack can still be completed."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
from arbora.grammars.errors import GrammarError, TooLargeError
from arbora.grammars.machine.stack_automaton import StackAutomaton
from arbora.runtime.automaton_format import STACK_DEPTH
from arbora.runtime.grammar_spec import PropertyOrder
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from json_automata import compile_schema

CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}


def needed(levels: int) -> dict[str, Any]:
    """Nested objects, `levels` deep, each of which is required in the one around it."""
    inner: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        inner = {**CLOSED, "properties": {"n": inner}, "required": ["n"]}
    return inner


AGAIN = {"$ref": "#"}
RECURSIVE: dict[str, tuple[bytes, dict[str, Any]]] = {
    "an object that must hold three": (
        b'{"next":',
        {**CLOSED, "properties": {"next": AGAIN, "held": needed(3)}, "required": ["held"]},
    ),
    "an array of pairs": (
        b"[[",
        {"type": "array", "items": {"type": "array", "items": AGAIN, "minItems": 2}},
    ),
    "a name that leads deep": (
        b'{"down":',
        {
            **CLOSED,
            "properties": {
                "deep": {"type": "array", "items": needed(4), "minItems": 1},
                "down": AGAIN,
                "d": True,
            },
        },
    ),
    "undeclared names that lead deep": (
        b'{"x":',
        {
            "type": "object",
            "properties": {"abc": {"type": "integer"}},
            "additionalProperties": {"anyOf": [AGAIN, needed(2)]},
            "minProperties": 1,
        },
    ),
    "names by pattern": (
        b'{"b":',
        {
            "type": "object",
            "patternProperties": {"^é": needed(3), "^a": {"type": "integer"}},
            "additionalProperties": AGAIN,
        },
    ),
    "an item that must be deep": (
        b"[",
        {
            "type": "array",
            "contains": {"type": "object", "required": ["k"]},
            "maxItems": 2,
            "items": {"anyOf": [AGAIN, {**CLOSED, "properties": {"k": needed(3)}}]},
        },
    ),
    "one kind or another": (
        b'{"kind":"tree","left":',
        {
            **CLOSED,
            "oneOf": [
                {"properties": {"kind": {"const": "leaf"}}, "required": ["kind"]},
                {"properties": {"kind": {"const": "tree"}, "left": AGAIN}, "required": ["kind", "left"]},
            ],
            "properties": {"kind": True, "left": True},
        },
    ),
}


RECURSIVE["names of which most lead deep"] = (
    b'{"a":',
    {
        **CLOSED,
        "properties": {"a": AGAIN, "b": needed(1), "bc": needed(3), "c": {"items": needed(2), "minItems": 1}},
    },
)
RECURSIVE["declared names beside others that lead deep"] = (
    b'{"down":',
    {
        "type": "object",
        "properties": {"down": AGAIN, "do": {"type": "integer"}, "d": needed(3)},
        "additionalProperties": needed(2),
    },
)
RECURSIVE["a name that asks for a deep one"] = (
    b'{"down":',
    {
        **CLOSED,
        "properties": {"down": AGAIN, "x": True, "deep": needed(3), "y": True},
        "dependentRequired": {"x": ["deep"], "y": ["x"]},
    },
)


Place = tuple[int, list[int]]


def steps(automaton: StackAutomaton, at: Place) -> dict[int, Place]:
    """The states after the allowed bytes, one byte of each class."""
    found = {}
    for byte in np.unique(automaton.class_of_byte, return_index=True)[1].tolist():
        stack = list(at[1])
        state = automaton.step(at[0], stack, byte)
        if state >= 0:
            found[byte] = state, stack
    return found


def ended(automaton: StackAutomaton, text: bytes, at: Place, chance: random.Random) -> bytes:
    """The text with a random end, mostly of closing bytes. Asserts that it never gets stuck."""
    added = bytearray()
    while not (automaton.accepting[at[0]] and not at[1]):
        allowed = steps(automaton, at)
        assert allowed, f"stuck after {text + added!r}"
        closing = [byte for byte, (_, stack) in allowed.items() if len(stack) < len(at[1])]
        closing += [byte for byte in allowed if byte == ord('"')]
        byte = chance.choice(closing if closing and chance.random() < 0.8 else list(allowed))
        at = allowed[byte]
        added.append(byte)
        assert len(added) < 20_000, f"no end after {text + added!r}"
    return text + added


@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize("name", RECURSIVE)
def test_every_value_that_can_begin_can_end(name: str, order: PropertyOrder) -> None:
    down, schema = RECURSIVE[name]
    machine = compile_schema(schema, property_order=order)
    automaton = replace(machine, max_depth=STACK_DEPTH)
    chance = random.Random(name)
    begun, at = bytearray(), (automaton.start, list[int]())
    while True:
        state, stack = at[0], list(at[1])
        state = automaton.step(state, stack, down[len(begun) % len(down)])
        if state < 0:
            break
        at = state, stack
        begun.append(down[len(begun) % len(down)])
        if len(stack) > STACK_DEPTH - 9:
            text = ended(automaton, bytes(begun), at, chance)
            assert automaton.accepts(text)
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert len(at[1]) > STACK_DEPTH - 9


DEEP = st.sampled_from([AGAIN, needed(1), needed(3), {"type": "array", "items": AGAIN, "minItems": 1}])
NAMES = st.sampled_from(["a", "ab", "b", "c"])
VALUES = DEEP | st.sampled_from([{"type": "integer"}, True, {"anyOf": [AGAIN, {"type": "null"}]}])
OBJECTS = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(NAMES, VALUES, min_size=1),
        "additionalProperties": st.just(False) | VALUES,
    },
    optional={
        "required": st.lists(NAMES, unique=True, max_size=2),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, unique=True, max_size=2), max_size=2),
        "minProperties": st.integers(1, 3),
        "anyOf": st.lists(st.fixed_dictionaries({"required": st.lists(NAMES, max_size=2)}), min_size=1),
    },
)


@settings(max_examples=60, deadline=None)
@given(OBJECTS, st.integers(0, 9999), st.sampled_from(["schema", "any"]))
def test_no_nested_value_gets_stuck(schema: dict[str, Any], seed: int, order: PropertyOrder) -> None:
    try:
        machine = compile_schema(schema, property_order=order)
    except (GrammarError, TooLargeError):
        assume(False)
    automaton, chance = replace(machine, max_depth=STACK_DEPTH), random.Random(seed)
    at: Place = (automaton.start, [])
    for _ in range(500):
        allowed = steps(automaton, at)
        if automaton.accepting[at[0]] and not at[1]:
            return
        assert allowed, "no way on"
        plain = [byte for byte in allowed if byte < 0x7F and byte != ord("\\")] or list(allowed)
        deeper = [byte for byte in plain if len(allowed[byte][1]) > len(at[1])]
        at = allowed[chance.choice(deeper if deeper and chance.random() < 0.9 else plain)]


@pytest.mark.parametrize("order", ["schema", "any"])
def test_a_schema_that_needs_more_levels_than_the_stack_has_is_too_large(order: PropertyOrder) -> None:
    with pytest.raises(TooLargeError, match="more than 30 levels"):
        compile_schema(needed(STACK_DEPTH + 1), property_order=order)
    assert compile_schema(needed(STACK_DEPTH)).accepts(b'{"n":' * STACK_DEPTH + b"null" + b"}" * STACK_DEPTH)
