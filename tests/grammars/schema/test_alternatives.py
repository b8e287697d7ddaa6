"""Alternatives of objects: their common properties, and the order of properties."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from arbora.grammars.schema.read.formula import Formula, Has
from arbora.grammars.schema.read.formulas import Formulas
from arbora.grammars.schema.solve.scalars import is_true
from arbora.grammars.schema.solve.simplifying import simplify
from arbora.runtime.grammar_spec import PropertyOrder
from hypothesis import given
from hypothesis import strategies as st
from json_automata import compile_schema, walked

MAKE = Formulas()
ATOMS = [MAKE.atom(Has(name)) for name in "abcd"]

formulas = st.recursive(
    st.sampled_from([*ATOMS, *map(MAKE.negation, ATOMS), MAKE.true, MAKE.false]),
    lambda inner: (
        st.lists(inner, min_size=2, max_size=4).map(MAKE.all_of)
        | st.lists(inner, min_size=2, max_size=4).map(MAKE.any_of)
    ),
    max_leaves=16,
)


@given(formulas, st.fixed_dictionaries({atom: st.booleans() for atom in ATOMS}))
def test_a_simplified_formula_holds_where_the_formula_does(
    formula: Formula, facts: Mapping[Formula, bool]
) -> None:
    assert is_true(simplify(MAKE, formula), facts.__getitem__) == is_true(formula, facts.__getitem__)


def test_conjuncts_that_all_alternatives_share_are_factored_out() -> None:
    a, b, c, d = ATOMS
    both = MAKE.any_of([MAKE.all_of([a, b]), MAKE.all_of([c, b])])
    not_both = MAKE.negation(MAKE.all_of([a, b, c, d]))
    said = simplify(MAKE, MAKE.all_of([both, not_both])).conjuncts()
    assert set(said) == {b, MAKE.any_of([a, c]), MAKE.negation(MAKE.all_of([a, c, d]))}


def alternatives(keyword: str, *, closed: bool) -> dict[str, Any]:
    """Two kinds of object with twelve optional properties each, of which they share four."""
    shared = {f"s{number}": {"type": "integer"} for number in range(4)}
    kinds = [
        {
            "properties": {kind: True, **{f"{kind}{i}": {"type": "boolean"} for i in range(8)}, **shared},
            "required": [kind],
            "additionalProperties": not closed,
        }
        for kind in "ab"
    ]
    return {"type": "object", keyword: kinds}


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_optional_properties_of_alternatives_may_come_in_any_order(keyword: str) -> None:
    automaton = compile_schema(alternatives(keyword, closed=True), property_order="any")
    names = ["b", *(f"b{number}" for number in range(8)), *(f"s{number}" for number in range(4))]
    for seed in range(5):
        random.Random(seed).shuffle(names)
        members = [f'"{name}":{1 if name[0] == "s" else "true"}' for name in names]
        assert automaton.accepts(f"{{{','.join(members)}}}".encode())
        assert not automaton.accepts(f'{{{",".join(members)},"a":1}}'.encode())
        assert not automaton.accepts(f"{{{','.join([*members, members[0]])}}}".encode())
        walked(automaton, random.Random(seed), 80)  # it asserts that it doesn't get stuck


def test_an_object_of_too_many_nodes_keeps_the_declared_order() -> None:
    schema = alternatives("oneOf", closed=False)
    automaton = compile_schema(schema, property_order="any")
    assert automaton.accepts(b'{"a":1,"a0":true,"s1":2,"b0":0}')
    assert not automaton.accepts(b'{"a0":true,"a":1}')


def test_properties_that_depend_on_none_of_too_many_others_may_come_in_any_order() -> None:
    pairs = {f"a{number}": [f"b{number}"] for number in range(8)}
    names = [name for first, (second,) in pairs.items() for name in (first, second)]
    schema = {
        "type": "object",
        "properties": {**dict.fromkeys(names, True), "x": True, "y": {"type": "integer"}},
        "dependentRequired": pairs,
        "required": ["x"],
        "additionalProperties": False,
    }
    automaton = compile_schema(schema, property_order="any")
    for text in (
        '{"y":1,"a1":0,"x":2,"b1":0,"a7":0,"b7":0}',
        '{"a0":0,"b0":0,"y":1,"x":2}',
        '{"x":1,"b3":1}',
    ):
        assert automaton.accepts(text.encode()), text
    for text in (
        '{"x":2,"b1":0,"a1":0}',
        '{"y":1,"a1":0,"x":2}',
        '{"a1":0,"b1":0}',
        '{"x":1,"a1":0,"b1":0,"x":1}',
    ):
        assert not automaton.accepts(text.encode()), text
    for seed in range(10):
        walked(automaton, random.Random(seed), 80)


@pytest.mark.parametrize("order", ["schema", "any"])
def test_many_objects_of_many_properties_stay_within_the_limit(order: PropertyOrder) -> None:
    def kind(number: int) -> dict[str, Any]:
        names = [f"property {number} {place}" for place in range(8)]
        pairs = {name: [other] for name, other in zip(names[::2], names[1::2], strict=True)}
        return {
            "type": "object",
            "properties": {name: {"type": "string"} for name in names},
            "dependentRequired": pairs,
            "additionalProperties": False,
        }

    schema = {"type": "object", "properties": {f"k{number}": kind(number) for number in range(12)}}
    automaton = compile_schema(schema, property_order=order)
    for number in range(12):
        first, second = (f'"property {number} {place}":""' for place in range(2))
        assert automaton.accepts(f'{{"k{number}":{{{first},{second}}}}}'.encode())
        assert not automaton.accepts(f'{{"k{number}":{{{first}}}}}'.encode())


@pytest.mark.parametrize("order", ["schema", "any"])
def test_one_of_closed_objects_may_require_a_name_that_another_lacks(order: PropertyOrder) -> None:
    closed = [
        {"properties": {"x": {}, name: {}}, "required": [name], "additionalProperties": False}
        for name in ("a", "b")
    ]
    automaton = compile_schema({"type": "object", "oneOf": closed}, property_order=order)
    for text in ('{"x":1,"a":1}', '{"x":1,"b":1}', '{"a":1}'):
        assert automaton.accepts(text.encode()), text
    for text in ('{"x":1}', '{"a":1,"b":1}', '{"x":1,"a":1,"b":1}', "{}"):
        assert not automaton.accepts(text.encode()), text


def test_required_names_distinguish_alternatives() -> None:
    kinds = [
        {"properties": {"kind": {"const": kind}, kind: {"type": "null"}}} for kind in ("first", "second")
    ]
    schema = {"type": "object", "required": ["kind"], "oneOf": kinds}
    automaton = compile_schema(schema)
    assert automaton.accepts(b'{"kind":"first","first":null,"second":1}')
    for text in ('{"kind":"first","first":1}', '{"kind":"third"}', '{"first":null}'):
        assert not automaton.accepts(text.encode()), text
