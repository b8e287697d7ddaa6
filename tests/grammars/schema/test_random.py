"""Random schemas: an automaton accepts exactly the valid values, and never gets stuck."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest
from arbora.grammars import GrammarError
from arbora.grammars.errors import NotCoveredError, TooLargeError
from arbora.grammars.machine.stack_automaton import StackAutomaton
from arbora.runtime.grammar_spec import AdditionalProperties, PropertyOrder
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from json_automata import accepts_in_some_order, compile_schema, walked
from llguidance_bytes import Peer

LONG_NUMBER = re.compile(rb"[\d.]{14}|[eE][+]?\d{3}")  # which a double rounds or cannot hold
NAMES = ("a", "ab", "b")
SLOW = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

scalars = st.sampled_from([None, True, False, 0, 1, 2, -1, 1.5, "", "a", "ab", "bb"])
instances = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=5,
)
small = st.integers(0, 2)
orders: st.SearchStrategy[PropertyOrder] = st.sampled_from(["schema", "any"])
additional: st.SearchStrategy[AdditionalProperties] = st.sampled_from(["schema", "declared"])


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", ["object", "string"]]),
            "properties": named,
            "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=2),
            "propertyNames": st.sampled_from([{"maxLength": 1}, {"pattern": "a"}, {"enum": ["a", "b"]}]),
            "minProperties": small,
            "maxProperties": small,
            "dependentRequired": st.just({"a": ["b"]}),
            "dependentSchemas": st.dictionaries(st.just("b"), inner, max_size=1),
            "unevaluatedProperties": inner,
        },
    )


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("array"),
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "items": inner,
            "contains": inner,
            "maxContains": st.integers(1, 2),
            "minItems": small,
            "maxItems": small,
            "unevaluatedItems": inner,
        },
    )


def combine(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(inner, min_size=1, max_size=3)
    closed = st.fixed_dictionaries({"unevaluatedProperties": inner, "unevaluatedItems": inner})
    # the validator of the tests would follow a reference from an `if` alone to itself without end
    decided = st.one_of(
        st.fixed_dictionaries({"then": inner}, optional={"else": inner}),
        st.fixed_dictionaries({"else": inner}),
    )
    conditional = st.tuples(inner, decided).map(lambda both: {"if": both[0], **both[1]})
    return st.one_of(
        several.map(lambda parts: {"allOf": parts}),
        several.map(lambda parts: {"anyOf": parts}),
        several.map(lambda parts: {"oneOf": parts}),
        st.tuples(several, closed).map(lambda both: {"anyOf": both[0], **both[1]}),
        inner.map(lambda part: {"not": part}),
        conditional,
    )


plain_leaves = st.one_of(
    st.booleans(),
    st.sampled_from(["null", "boolean", "number", "integer", "string", "object", "array"]).map(
        lambda name: {"type": name}
    ),
    st.lists(instances, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.fixed_dictionaries(
        {},
        optional={
            "minimum": st.integers(-1, 2),
            "exclusiveMaximum": small,
            "multipleOf": st.sampled_from([2, 0.5]),
        },
    ),
    st.fixed_dictionaries(
        {}, optional={"minLength": small, "maxLength": small, "pattern": st.sampled_from(["^a", "b", "^a*$"])}
    ),
)


@st.composite
def schemas(draw: st.DrawFn, leaves: st.SearchStrategy[Any] = plain_leaves) -> dict[str, Any]:
    subschemas = st.recursive(
        leaves | st.just({"$ref": "#/$defs/again"}),
        lambda inner: st.one_of(objects(inner), arrays(inner), combine(inner)),
        max_leaves=6,
    )
    whole = draw(subschemas)
    again = draw(st.one_of(objects(subschemas), arrays(subschemas), leaves))
    fields = {"allOf": [whole]} if isinstance(whole, bool) or "$ref" in whole else dict(whole)
    return {**fields, "$defs": {"again": again}}


def without_repeats(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Removes repeated undeclared names, because a reader sees fewer members than were counted."""
    assume(len(dict(members)) == len(members))
    return dict(members)


def compiled(
    schema: Any, order: PropertyOrder, additional: AdditionalProperties = "schema"
) -> StackAutomaton | None:
    """The automaton, or None if no value is allowed."""
    try:
        return compile_schema(schema, property_order=order, additional_properties=additional)
    except (NotCoveredError, TooLargeError):
        assume(False)
        raise
    except GrammarError as error:
        assert "allows no value" in str(error), schema
        return None


@SLOW
@given(schemas(), st.lists(instances, min_size=1, max_size=12), orders)
def test_a_value_is_accepted_if_and_only_if_it_is_valid(
    schema: Any, values: list[Any], order: PropertyOrder
) -> None:
    automaton = compiled(schema, order)
    validator = jsonschema.Draft202012Validator(schema)
    for value in values:
        is_accepted = automaton is not None and accepts_in_some_order(automaton, value)
        assert is_accepted == validator.is_valid(value), value


@SLOW
@given(schemas(), st.randoms(use_true_random=False), st.integers(0, 60), orders, additional)
def test_random_walks_end_in_valid_values(
    schema: Any, chance: random.Random, length: int, order: PropertyOrder, additional: AdditionalProperties
) -> None:
    automaton = compiled(schema, order, additional)
    assume(automaton is not None)
    assert automaton is not None
    text = walked(automaton, chance, length)
    assert automaton.accepts(text)
    assume(not LONG_NUMBER.search(text))
    jsonschema.Draft202012Validator(schema).validate(json.loads(text, object_pairs_hook=without_repeats))


@SLOW
@given(schemas(), st.lists(instances, min_size=1, max_size=12), orders)
def test_declared_properties_alone_never_rule_out_all_values_nor_allow_invalid_ones(
    schema: Any, values: list[Any], order: PropertyOrder
) -> None:
    automaton = compiled(schema, order, "declared")
    assert (automaton is None) == (compiled(schema, order) is None)
    validator = jsonschema.Draft202012Validator(schema)
    for value in values:
        if automaton is not None and accepts_in_some_order(automaton, value):
            validator.validate(value)


SHARED_WITH_LLGUIDANCE: list[Any] = [
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 250}, "b": {"enum": ["x", "yé"]}},
    },
    {
        "type": "object",
        "properties": {"t": {"format": "date-time"}, "u": {"format": "uuid"}},
        "required": ["t"],
    },
    {"type": "array", "items": {"type": "string", "pattern": "^[a-f]+-\\d{2}$"}, "minItems": 1},
    {"anyOf": [{"type": "null"}, {"type": "object", "additionalProperties": {"type": "boolean"}}]},
    {"type": "object", "properties": {"n": {"$ref": "#"}}, "additionalProperties": False},
    {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 4}},
    {"type": "array", "items": {"type": "string", "maxLength": 70}},
]


@pytest.mark.parametrize("schema", SHARED_WITH_LLGUIDANCE)
def test_llguidance_accepts_the_texts_of_random_walks(schema: Any) -> None:
    automaton = compile_schema(schema)
    peer = Peer(schema)
    chance = random.Random(1)
    for length in range(0, 60, 3):
        text = walked(automaton, chance, length)
        if b"\\u" in text or b"\\/" in text or b"\x7f" in text:
            continue  # it accepts fewer escapes
        assert peer.accepts(text), text
