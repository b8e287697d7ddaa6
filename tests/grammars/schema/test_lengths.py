"""Strings with a maximum length beside a pattern or a format: exact up to and beyond the bound."""

from __future__ import annotations

import json
import random
import re

import pytest
from arbora.grammars.errors import NotCoveredError
from arbora.grammars.regex.regex_dfa import compile_match, compile_search
from arbora.grammars.schema.lexical.counted import longest, shortest
from arbora.runtime.automaton_format import COUNT, KIND
from arbora.runtime.grammar_spec import GrammarSpec
from json_automata import COMPILER, compact, compile_schema, walked

REPEATED = [  # a pattern, and texts that are repeated to texts around the bound
    ("^[a-z]+$", ["a", "ab"]),
    ("^[^<>]*$", ["é", "a\n", "😀", '"\\', "\x7fé"]),
    ("^(?:ab)*$", ["ab"]),
    ("^(?:ab|é😀|[^a])*$", ["ab", "é😀", "\u2028b", "a"]),
    ("^.*;$", ["a;", "é;"]),
    ("b", ["ab", "é", "abé"]),
    ("^(?!.*aa)[ab]+$", ["ab", "b", "aab"]),
]


@pytest.mark.parametrize(("pattern", "units"), REPEATED)
@pytest.mark.parametrize("most", [67, 100, 257, 1_000])
@pytest.mark.parametrize("least", [0, 3])
def test_a_pattern_with_a_maximum_length_is_exact(
    pattern: str, units: list[str], most: int, least: int
) -> None:
    schema = {"type": "string", "pattern": pattern, "maxLength": most, "minLength": least}
    automaton = compile_schema(schema)
    assert any(automaton.actions[:, KIND] == COUNT)
    dfa = compile_search(pattern)
    for unit in units:
        for length in (*range(6), most // 2, *range(most - 40, most + 3), most + 40, 2 * most):
            text = (unit * length)[-length:] if length else ""
            is_valid = least <= length <= most and dfa.label(text) >= 0
            assert automaton.accepts(compact(text)) == is_valid, (unit, length)
            assert automaton.accepts(json.dumps(text).encode()) == is_valid


@pytest.mark.parametrize("seed", range(20))
def test_no_reply_gets_stuck_before_the_bound(seed: int) -> None:
    pattern = "^(?:[a-c]{2};|[é😀]{3}\\.)*end$"
    schema = {
        "type": "array",
        "items": {"pattern": pattern, "type": "string", "maxLength": 120},
        "minItems": 2,
    }
    automaton = compile_schema(schema)
    items = json.loads(walked(automaton, random.Random(seed), 500 + 20 * seed))
    assert len(items) >= 2
    assert all(re.search(pattern, item) and len(item) <= 120 for item in items)


def test_a_url_may_have_all_2083_characters_of_a_browsers_limit() -> None:
    automaton = compile_schema({"type": "string", "format": "uri", "maxLength": 2083, "minLength": 1})
    for length in (12, 300, 2051, 2082, 2083):
        url = ("https://ab.c/" + "d%20/" * 500)[:length]
        url = url.rstrip("%2").ljust(length, "x")
        assert automaton.accepts(compact(url))
        assert automaton.accepts(compact(url + "x")) == (length < 2083)
    assert not automaton.accepts(b'""') and not automaton.accepts(b'"no url"')


def test_a_bound_that_a_pattern_cant_reach_costs_no_count() -> None:
    for format in ("uuid", "date-time", "ipv4"):
        schema = {"type": "string", "format": format}
        free, bounded = (compile_schema({**schema, **bound}) for bound in ({}, {"maxLength": 2083}))
        is_finite = format != "date-time"  # its fractions of a second are of any length
        assert any(bounded.actions[:, KIND] == COUNT) != is_finite
        assert (len(bounded.transitions) == len(free.transitions)) == is_finite


def test_the_shortest_and_the_longest_text_of_an_automaton_are_known() -> None:
    dfa = compile_match("ab?c{2,4}")
    assert (shortest(dfa), longest(dfa)) == (3, 6)
    assert longest(compile_match("ab*")) > 10**6


def test_a_pattern_whose_shortest_text_is_too_long_matches_nothing() -> None:
    with pytest.raises(ValueError, match="allows no value"):
        compile_schema({"type": "string", "pattern": "^a{300}b*$", "maxLength": 299})


UNCOUNTED = {"type": "string", "pattern": "^a", "minLength": 300}
EITHER = {
    "anyOf": [{"type": "string", "format": "uri", "maxLength": 2083}, {"type": "string", "maxLength": 300}]
}


@pytest.mark.parametrize(("schema", "keyword", "path"), [
    (UNCOUNTED, "minLength", "#/minLength"),
    ({"properties": {"a": UNCOUNTED}}, "minLength", "#/properties/a/minLength"),
    (EITHER, "maxLength", "#/anyOf/0/maxLength"),
    ({"propertyNames": {"maxLength": 300}}, "maxLength", "#/propertyNames/maxLength"),
])  # fmt: skip
def test_a_length_that_no_automaton_counts_is_named_and_may_be_left_out(
    schema: object, keyword: str, path: str
) -> None:
    text = json.dumps(schema)
    with pytest.raises(NotCoveredError) as refused:
        compile_schema(text)
    assert (refused.value.keyword, refused.value.path) == (keyword, path)
    assert "automata count up to 256 characters" in str(refused.value)
    left_out = COMPILER.compile(
        GrammarSpec("json_schema", text, whitespace=(",", ":"), unenforced="allow")
    ).left_out
    assert left_out[0] == (keyword, path)
