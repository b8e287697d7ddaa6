"""`uniqueItems`: the arrays that it allows, by JSON equality, and the schemas in which it is refused."""

from __future__ import annotations

import json
from itertools import product
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from arbora.grammars import GrammarError
from arbora.grammars.errors import NotCoveredError
from arbora.runtime.grammar_spec import GrammarSpec, Unenforced
from json_automata import COMPILER, compact, compile_schema
from pydantic import BaseModel, Field, HttpUrl

COLORS = {"enum": ["red", "green", "é"]}
DEFINED = {"$defs": {"color": COLORS, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]}}}
UNIQUE: dict[str, Any] = {"type": "array", "uniqueItems": True}

CASES: dict[str, dict[str, Any]] = {
    "enum": {"items": COLORS},
    "bounded": {"items": COLORS, "minItems": 2, "maxItems": 2},
    "mixed": {"items": {"enum": ["red", 1, 0, None, True, False]}, "maxItems": 3},
    "equal twice": {"items": {"enum": [1, 1.0, 2]}},
    "types": {"items": {"type": ["boolean", "null"]}},
    "a reference": {"items": {"$ref": "#/$defs/color"}, **DEFINED},
    "alternatives": {"items": {"anyOf": [{"$ref": "#/$defs/color"}, {"type": "null"}]}, **DEFINED},
    "prefix": {"prefixItems": [{"const": 1}, {"enum": [1, 2]}], "items": False},
    "prefix and more": {"prefixItems": [{"enum": ["red", 1]}], "items": {"enum": [1, 2]}},
    "bounded prefix": {"prefixItems": [{"enum": [1, 2]}, {"enum": [2, "red"]}], "maxItems": 2},
    "contains": {"items": COLORS, "contains": {"const": "green"}},
    "integers of a range": {"items": {"type": "integer", "minimum": 0, "exclusiveMaximum": 2.5}},
    "integers or none": {"items": {"type": ["integer", "null"], "minimum": 1, "maximum": 2}},
    "many values, few items": {"items": {"enum": [*range(28), "red", None]}, "maxItems": 2},
    "more is said": {"items": {"enum": ["red", "green", 1, 2], "minimum": 2}},
}
VALUES = ["red", "green", "é", 0, 1, 2, None, True, False]


@pytest.mark.parametrize("name", CASES)
def test_uniqueness_is_enforced_for_items_of_few_values(name: str) -> None:
    schema = {**UNIQUE, **CASES[name]}
    automaton = compile_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    arrays = [list(items) for length in range(4) for items in product(VALUES, repeat=length)]
    allowed = [array for array in arrays if validator.is_valid(array)]
    assert 1 < len(allowed) < len(arrays)
    assert [array for array in arrays if automaton.accepts(compact(array))] == allowed


def test_all_values_may_come_once_and_then_no_item() -> None:
    letters = list("abcdefgh")
    automaton = compile_schema({**UNIQUE, "items": {"enum": letters}})
    assert automaton.accepts(compact(letters[::-1])) and automaton.accepts(compact(letters))
    assert not automaton.accepts(compact([*letters, "a"]))
    state, stack = automaton.start, list[int]()
    for byte in compact(letters)[:-1]:
        state = automaton.step(state, stack, byte)
    assert [byte for byte in range(256) if automaton.step(state, list(stack), byte) >= 0] == [ord("]")]


@pytest.mark.parametrize(("one", "other"), [("1", "1.0"), ("-0.5", "-0.5"), ('"é"', '"\\u00e9"')])
def test_equal_values_are_equal_however_they_are_written(one: str, other: str) -> None:
    automaton = compile_schema({**UNIQUE, "items": {"enum": [1, 1.0, 2, "é", -0.5]}})
    assert automaton.accepts(f"[{one},2]".encode()) and automaton.accepts(f"[{other},2]".encode())
    pairs = [f"[{first},{second}]" for first in (one, other) for second in (one, other)]
    assert not any(automaton.accepts(pair.encode()) for pair in pairs)


def test_not_unique_items_allows_only_arrays_with_repeated_items() -> None:
    items = {"enum": [1, "a"]}
    schema = {"type": "array", "items": items, "not": {"uniqueItems": True, "items": items}}
    automaton = compile_schema(schema)
    assert automaton.accepts(b"[1,1]") and automaton.accepts(b'["a",1,1]')
    assert not automaton.accepts(b"[1]") and not automaton.accepts(b'["a",1]')


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"items": {"type": "string"}},
        {"items": {"enum": list(range(10))}},
        {"items": {"enum": list(range(40))}, "maxItems": 2},
        {"items": {"type": "integer", "minimum": 0}},
        {"items": {"type": "integer", "minimum": 0, "maximum": 10**30}},
        {"items": {"type": ["integer", "string"], "minimum": 0, "maximum": 1}},
        {"items": {"enum": [[1], 2]}},
        {"items": {"$ref": "#/$defs/loop"}, **DEFINED},
        {"items": {"$ref": "#"}},
        {"prefixItems": [COLORS]},
        {"prefixItems": [COLORS, {}], "items": False},
    ],
    ids=str,
)
def test_items_of_many_values_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(NotCoveredError) as caught:
        compile_schema({**UNIQUE, **said})
    assert caught.value.path == "#/uniqueItems" and "at most 9 possible values" in str(caught.value)


def test_an_array_of_more_items_than_distinct_values_matches_nothing() -> None:
    with pytest.raises(GrammarError, match="allows no value"):
        compile_schema({**UNIQUE, "items": COLORS, "minItems": 4})


class Page(BaseModel):
    urls: set[HttpUrl]
    kinds: set[Literal["a", "b", "c"]]
    hosts: set[Annotated[str, Field(pattern="^[a-z.]+$", max_length=257)]]


PRICE = {  # as pydantic 2.12 writes a Decimal with max_digits=6 and decimal_places=2
    "anyOf": [
        {"type": "number"},
        {
            "type": "string",
            "pattern": r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,4}|(?=[\d.]{1,7}0*$)\d{0,4}\.\d{0,2}0*$)",
        },
    ]
}


def test_pydantics_sets_are_left_to_the_check_of_a_call_and_all_else_is_enforced() -> None:
    schema = Page.model_json_schema()
    schema["properties"]["prices"] = {"type": "array", "uniqueItems": True, "items": PRICE, "maxItems": 3}
    schema["properties"]["other"] = {"not": {"type": ["string", "array"]}}
    page = {
        "urls": ["https://a.b/" + "c" * 2071],
        "kinds": ["b", "a"],
        "hosts": ["a" * 257],
        "prices": [1, "1.25"],
    }
    with pytest.raises(NotCoveredError, match="'uniqueItems' at #/properties/urls/uniqueItems"):
        compile_schema(schema)
    cases: list[tuple[Unenforced, bool]] = [("annotations", True), ("allow", False), ("allow", True)]
    for unenforced, is_checked in cases:
        automaton, left_out = COMPILER.compile(
            GrammarSpec("json_schema", json.dumps(schema), whitespace=(",", ":"), unenforced=unenforced),
            is_checked=is_checked,
        )
        unique = [("uniqueItems", f"#/properties/{name}/uniqueItems") for name in ("urls", "hosts", "prices")]
        assert sorted(left_out) == sorted(unique)
        assert automaton.accepts(compact(page))
        for wrong in (
            {"urls": ["https://a.b/" + "c" * 2072]},
            {"urls": ["no url"]},
            {"kinds": ["a", "a"]},
            {"hosts": ["a" * 258]},
            {"prices": ["."]},
            {"other": "text"},
        ):
            assert not automaton.accepts(compact({**page, **wrong}))
