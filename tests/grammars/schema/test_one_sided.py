"""Formats of which only a part is known: regex, idn-email and idn-hostname."""

from __future__ import annotations

import json
import re
import warnings
from itertools import product
from typing import Any

import pytest
from arbora.grammars.errors import NotCoveredError
from arbora.grammars.schema import SchemaCompiler
from arbora.grammars.schema.lexical.formats import FORMATS
from hypothesis import given, settings
from hypothesis import strategies as st
from json_automata import compact

COMPILER = SchemaCompiler()
REGEX = {"type": "string", "format": "regex"}

ESCAPE_OR_CLASS = re.compile(r"\\.|\[\^?((?:\\.|[^\\\]])*)\]")
ATOMS = st.sampled_from(
    [
        *"aZ5 _é字/",
        ".",
        r"\d",
        r"\.",
        r"\-",
        r"\p{Lu}",
        r"\u00e9",
        "[a-z0-9_]",
        r"[^\s,]",
        "[-+*/]",
        r"[\w.-]",
    ]
)
COUNTS = st.tuples(st.integers(0, 99), st.integers(0, 120)).map(lambda pair: f"{{{min(pair)},{max(pair)}}}")
QUANTIFIERS = st.sampled_from(["", "*", "+?", "?", "{3}", "{2,}"]) | COUNTS


def alternatives(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    item = st.builds("{}{}".format, inner, QUANTIFIERS) | st.sampled_from(["^", "$", r"\b", "|"])
    return st.lists(item, max_size=4).map("".join)


def grouped(depth: int) -> st.SearchStrategy[str]:
    if not depth:
        return alternatives(ATOMS)
    kind = st.sampled_from(["(", "(?:"])
    return alternatives(ATOMS | st.builds("{}{})".format, kind, grouped(depth - 1)))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 4).flatmap(grouped))
def test_usual_regexes_are_allowed(text: str) -> None:
    assert FORMATS["regex"]().label(text) >= 0


@pytest.mark.parametrize("letters", ["a-z(|)", "[]^-za", "a{1,2}", r"[\d]-", "(?:=!)", "a*+?|("])
def test_short_texts_that_are_allowed_are_regexes_elsewhere(letters: str) -> None:
    dfa = FORMATS["regex"]()
    every = ["".join(chosen) for length in range(5) for chosen in product(letters, repeat=length)]
    allowed = [text for text in every if dfa.label(text) >= 0]
    assert len(allowed) > 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for text in allowed:
            re.compile(ESCAPE_OR_CLASS.sub(without_empty_class, text))


def without_empty_class(found: re.Match[str]) -> str:
    """To Python no class is empty."""
    return "." if found[1] == "" else found[0]


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (REGEX, ["", "(a)+\n"], ["(", 1]),
        (REGEX | {"pattern": r"^\^.*\$$"}, ["^a$", "^(a|b)$"], ["a$", "^($", "^[$"]),
        (REGEX | {"minLength": 2, "maxLength": 3}, ["a+", "(a)"], ["a", "a(", "aaaa"]),
        (REGEX | {"enum": ["^a$", "b*", 3]}, ["^a$", "b*"], ["c", 3]),
        ({"format": "regex"}, ["a", 1, None], ["("]),
        ({"anyOf": [REGEX, {"type": "string", "format": "uri"}]}, ["(a)", "a:"], ["(", "a:["]),
        ({"oneOf": [REGEX, {"type": "integer"}]}, ["a", 1], [")", 1.5]),
        ({"allOf": [REGEX, {"maxLength": 1}]}, ["a", "|"], ["*", "ab"]),
        ({"properties": {"p": REGEX}, "required": ["p"]}, [{"p": "[a-z]"}], [{"p": "[z-a]"}, {}]),
        ({"type": "string", "not": {"not": REGEX}}, ["a"], ["("]),
        ({"contains": REGEX, "minContains": 2}, [["a", "b"], ["(", "a", "b"]], [["a", "("]]),
        (
            {"anyOf": [{"properties": {"a": REGEX}, "required": ["a"]}, {"required": ["b"]}]},
            [{"a": "a"}, {"a": "(", "b": 1}, {"b": 1}],
            [{"a": "("}, {}],
        ),
    ],
)
def test_a_format_goes_with_other_keywords(
    schema: dict[str, Any], right: list[Any], wrong: list[Any]
) -> None:
    automaton = COMPILER.compile(json.dumps(schema))
    assert [value for value in right if not automaton.accepts(compact(value))] == []
    assert [value for value in wrong if automaton.accepts(compact(value))] == []


@pytest.mark.parametrize("name", ["regex", "idn-email", "idn-hostname"])
@pytest.mark.parametrize(
    ("around", "path"),
    [
        (lambda schema: {"type": "string", "not": schema}, "#/not"),
        (lambda schema: {"oneOf": [schema, {"type": "string", "maxLength": 9}]}, "#/oneOf/0"),
        (lambda schema: {"if": schema, "then": {"const": 1}, "else": {"maxLength": 2}}, "#/if"),
        (lambda schema: {"not": {"properties": {"a": schema}, "required": ["a"]}}, "#/not/properties/a"),
        (
            lambda schema: {"if": {"properties": {"a": schema}}, "then": {"required": ["b"]}},
            "#/if/properties/a",
        ),
        (lambda schema: {"if": {"contains": schema}, "then": {"minItems": 2}}, "#/if/contains"),
        (lambda schema: {"contains": schema, "maxContains": 1}, "#/contains"),
        (lambda schema: {"propertyNames": schema}, "#/propertyNames"),
        (lambda schema: {"propertyNames": {"not": schema}}, "#/propertyNames/not"),
        (lambda schema: {"properties": {"a": {"not": {"allOf": [schema]}}}}, "#/properties/a/not/allOf/0"),
        (lambda schema: {"items": schema | {"enum": ["((((((a))))))"]}}, "#/items"),
    ],
)
def test_no_schema_may_depend_on_the_texts_that_such_a_format_refuses(
    name: str, around: Any, path: str
) -> None:
    with pytest.raises(NotCoveredError, match=f"'format' at {path}/format.*{name}"):
        COMPILER.compile(json.dumps(around({"format": name})))


@pytest.mark.parametrize(
    "beside", [{"pattern": r"^\\1"}, {"pattern": r"^\(\?<a>"}, {"const": "(?<a>b)"}, {"pattern": r"^\(+$"}]
)
def test_a_schema_whose_known_texts_are_all_excluded_is_refused_as_one_sided(beside: dict[str, str]) -> None:
    with pytest.raises(NotCoveredError, match=r"'format' at #/format.*regex"):
        COMPILER.compile(json.dumps(REGEX | beside))


def test_such_a_format_may_be_left_out_where_it_would_be_ruled_out() -> None:
    schema = {"oneOf": [REGEX, {"type": "string", "minLength": 3}]}
    compiled = COMPILER.compile_allowing("allow", json.dumps(schema), (",", ":"), property_order="schema")
    assert compiled.left_out == (("format", "#/oneOf/0/format"),)
    assert compiled.machine.accepts(compact("ab")) and not compiled.machine.accepts(compact("abc"))
