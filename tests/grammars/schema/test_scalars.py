"""Patterns, formats and numbers as automata over code points, and the forms of strings."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from itertools import product

import pytest
from arbora.grammars.regex.dfa import combine, complement, intersect, minimize, unite
from arbora.grammars.regex.regex_dfa import compile_search
from arbora.grammars.schema.emit.names import has_one_form
from arbora.grammars.schema.lexical.json_string_bytes import (
    PUSHES,
    Block,
    bounded_block,
    inlined_block,
    string_block,
)
from arbora.grammars.schema.lexical.numbers import compare, multiples, number_texts
from arbora.grammars.schema.lexical.texts import literals
from hypothesis import given, settings
from hypothesis import strategies as st
from json_automata import compile_schema

ALPHABET = "ab1é\n"
TEXTS = ["".join(letters) for length in range(5) for letters in product(ALPHABET, repeat=length)]
PATTERNS = [
    "",
    "a",
    "^a",
    "b$",
    "^(a|ab)$",
    "(^a|b)1",
    "a(b$|1)",
    "(a|b)*abb",
    "a*?b+?1",
    "^(ab?){2,3}$",
    "[^a]$",
    "^[a-b]{0,3}é",
    "^.$",
    "(?s:^.)",
    r"^\d+$|\w{3}",
    r"^\D\W?$",
    "(?i:^A)b",
    "^$|^b",
    "a^b",
    "a$b",
    "(a{2}){1,2}$",
    "^(?!ab)",
    "a(?=b)",
    "^(?:(?!ab).)*$",
    "(?:(?=.1)[ab]|1)*$",
    "^(?=.*1)(?!.*b)[^é]+$",
    r"^\S+\s",
    "[a-]",
    "^a{3,}",
    "^(?:|b)a$",
    r"^\x61",
    "^(^a)",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_found_where_python_finds_it(pattern: str) -> None:
    dfa = compile_search(pattern)
    # Python's $ also matches before a last line feed, and its . matches a carriage return
    expected = re.sub(r"(?<!\\)\$", r"\\Z", pattern)
    assert [t for t in TEXTS if dfa.label(t) >= 0] == [t for t in TEXTS if re.search(expected, t, re.ASCII)]


@settings(deadline=None)
@given(st.sampled_from(PATTERNS), st.sampled_from(PATTERNS))
def test_boolean_operations_are_set_operations(left: str, right: str) -> None:
    a, b = compile_search(left), compile_search(right)
    for text in TEXTS[::7]:
        in_a, in_b = a.label(text) >= 0, b.label(text) >= 0
        assert (intersect(a, b).label(text) >= 0) == (in_a and in_b)
        assert (unite(a, b).label(text) >= 0) == (in_a or in_b)
        assert (complement(a).label(text) >= 0) == (not in_a)
    nothing = combine(a, complement(a), lambda x, y: 0 if x >= 0 and y >= 0 else -1)
    assert (nothing.labels < 0).all()


def test_a_minimal_automaton_has_one_state_for_each_future() -> None:
    assert len(minimize(compile_search("^(aa|ab|ba|bb)$")).labels) == 3


decimals = st.decimals(-2000, 2000, places=3).map(str) | st.integers(-2000, 2000).map(str)


@settings(deadline=None)
@given(decimals, decimals)
def test_numbers_are_compared_by_value(text: str, bound: str) -> None:
    value, limit = Fraction(text), Fraction(bound)
    assert compare(limit).label(text) == (value > limit) - (value < limit) + 1


@settings(deadline=None)
@given(decimals, st.sampled_from(["1", "2", "7", "10", "100", "0.5", "0.01", "0.3", "2.5"]))
def test_multiples_are_exact_in_decimals(text: str, divisor: str) -> None:
    is_multiple = (Fraction(text) / Fraction(divisor)).denominator == 1
    assert (multiples(Fraction(divisor)).label(text) >= 0) == is_multiple


def test_integers_are_written_without_a_fraction() -> None:
    dfa = number_texts(exponents=False, whole_fractions=False)
    assert dfa.label("10") >= 0 and dfa.label("1.5") >= 0
    assert dfa.label("1.0") < 0 and dfa.label("1e1") < 0


ONE_OR_SEVEN = {"enum": [1, 7.0]}
INTEGER_OR_NULL = {"type": ["integer", "null"]}


@pytest.mark.parametrize(
    ("schema", "spelled_ways"),
    [
        (ONE_OR_SEVEN, ["1", "7.0"]),
        ({"const": 7}, ["7"]),
        ({"type": "number", **ONE_OR_SEVEN}, ["1", "7.0"]),
        ({"type": ["number", "integer"], "const": 7.0}, ["7.0"]),
        ({"enum": [7.0, 1, 7, 1.5]}, ["1", "7", "7.0", "1.5"]),
        ({"allOf": [{"enum": [1, 7]}, {"enum": [7.0, 2]}]}, ["7", "7.0"]),
        ({"enum": [1, 7], "not": {"const": 7.0}}, ["1"]),
        ({"enum": [1, 7.0], "minimum": 2}, ["7.0"]),
        ({"anyOf": [{"const": 7.0}, {"enum": [1, 1.5], "maximum": 1}]}, ["1", "7.0"]),
        ({"type": "integer", **ONE_OR_SEVEN}, ["1", "7"]),
        ({"type": "integer", "enum": [7, 1.5]}, ["7"]),
        ({"type": "integer", "const": 7.0}, ["7"]),
        ({"allOf": [INTEGER_OR_NULL, ONE_OR_SEVEN]}, ["1", "7"]),
        ({"anyOf": [{"type": "integer", "const": 1}, {**INTEGER_OR_NULL, "const": 7}]}, ["1", "7"]),
    ],
    ids=str,
)
def test_listed_numbers_are_written_as_the_schema_does_or_without_fraction_where_the_type_is_integer(
    schema: dict[str, object], spelled_ways: list[str]
) -> None:
    automaton = compile_schema(schema)
    texts = ["1", "1.0", "1.00", "7", "7.0", "7.00", "7e0", "0.7e1", "1.5", "-7"]
    assert [text for text in texts if automaton.accepts(text.encode())] == spelled_ways


def test_a_listed_number_keeps_its_digits_and_exponent() -> None:
    automaton = compile_schema('{"properties":{"a":{"enum":[1e3,-0.50]},"b":{"const":-0.5}}}')
    texts = [f'{{"{name}":{number}}}' for name in "ab" for number in ("1e3", "1000", "1E3", "-0.50", "-0.5")]
    accepted = [text for text in texts if automaton.accepts(text.encode())]
    assert accepted == ['{"a":1e3}', '{"a":-0.50}', '{"b":-0.5}']


def test_enumerated_numbers_that_distinguish_objects_are_written_like_others() -> None:
    kinds = [{"const": 1}, {"type": "integer", "const": 2}]
    others = [{"type": "string"}, {"type": "null"}]
    objects = [
        {"properties": {"kind": kind, "of": other}, "required": ["kind", "of"]}
        for kind, other in zip(kinds, others, strict=True)
    ]
    automaton = compile_schema({"type": "object", "anyOf": objects})
    assert automaton.accepts(b'{"kind":1,"of":""}') and automaton.accepts(b'{"kind":2,"of":null}')
    wrong = [b'{"kind":2,"of":""}', b'{"kind":2.0,"of":null}', b'{"kind":1,"of":null}', b'{"kind":3,"of":""}']
    assert not any(map(automaton.accepts, wrong))


def ends(block: Block, text: bytes) -> int:
    """The label with which a quote leaves the block after `text`, -1 for none."""
    state, caller = 0, -1
    for byte in text + b'"':
        column = block.class_of_byte[byte]
        entry = int(block.transitions[state, column] if caller < 0 else block.graph[state, column])
        if caller >= 0 and entry < -1:
            state, caller = int(block.ends[caller, -2 - entry]), -1
        elif entry <= PUSHES:
            state, caller = PUSHES - entry, state
        elif entry < -1:
            return -2 - entry if byte == 0x22 else -1
        else:
            state = entry
        if state < 0:
            return -1
    return -1


@settings(max_examples=200, deadline=None)
@given(
    st.text(max_size=6),
    st.sampled_from(["^.*$", "[a-zé]", "^[^a]*$", "^[\\s\\S]{0,3}$", "\U0001f600", "^\\P{L}*$"]),
)
def test_strings_are_matched_however_they_are_written(text: str, pattern: str) -> None:
    dfa = compile_search(pattern)
    for block in (string_block(dfa, "usual"), inlined_block(dfa, "usual"), string_block(dfa, "any")):
        assert block is not None
        for ascii_only in (True, False):
            written = json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode()
            assert (ends(block, written) >= 0) == (dfa.label(text) >= 0)


def test_every_escape_is_accepted_if_any_escape_is_allowed() -> None:
    block = string_block(literals(["A/é\U0001f600"]), "any")
    assert block is not None
    assert ends(block, rb"\u0041\/\u00E9\uD83D\ude00") >= 0
    assert ends(block, rb"\u0041\/\u00E9\uD83D\ude01") < 0


def test_a_counted_string_has_few_states() -> None:
    assert len(bounded_block(2, 100_000).transitions) < 50


def test_names_of_plain_letters_have_one_form() -> None:
    assert has_one_form("plain name") and not has_one_form("é") and not has_one_form('"')
