"""Byte automata accept exactly what `re.fullmatch` accepts."""

from __future__ import annotations

import re
from itertools import product

import pytest
from arbora.grammars import GrammarError
from arbora.grammars.regex.byte_automaton import compile_regex
from arbora.grammars.regex.pattern import literal, without_anchors
from hypothesis import given, settings
from hypothesis import strategies as st

ALPHABET = "ab1é"
TEXTS = ["".join(letters) for length in range(5) for letters in product(ALPHABET, repeat=length)]


def accepted(pattern: str) -> list[str]:
    automaton = compile_regex(without_anchors(pattern))
    return [text for text in TEXTS if automaton.accepts(text.encode())]


@pytest.mark.parametrize(
    "pattern",
    [
        "(a|ab)",
        "(a|b)*abb",
        "a*?b+?",
        "(ab?){2,3}",
        "[^a]",
        "[a-b]{0,3}é",
        ".",
        "(?s:.)+",
        r"\d+|\w*",
        r"\D\W?",
        "(?i:A)b",
        "(?x) a  b # spaced",
        "(?P<letter>a)b",
        "^(a|b)$",
        r"\Aa|b1\Z",
        "(^a|^b)(1|é)",
        "a(b$|1$)",
        "",
        "a{0}b",
        "(?:a|)(b|)",
        r"[\d\-a]*",
    ],
)
def test_the_language_is_that_of_fullmatch(pattern: str) -> None:
    assert accepted(pattern) == [text for text in TEXTS if re.fullmatch(pattern, text, re.ASCII)]


patterns = st.recursive(
    st.sampled_from(["a", "b", "1", "é", ".", "[ab]", "[^b1]", r"\d", r"\w"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}"])).map(
            lambda p: f"(?:{p[0]}){p[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(patterns)
def test_any_pattern_is_exact(pattern: str) -> None:
    assert accepted(pattern) == [text for text in TEXTS if re.fullmatch(pattern, text, re.ASCII)]


@given(st.text(max_size=8))
def test_a_literal_matches_itself_alone(text: str) -> None:
    automaton = compile_regex(literal(text))
    assert automaton.accepts(text.encode())
    assert not automaton.accepts((text + "x").encode())


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("(?=a)b", "has look-ahead (?=…), which"),
        ("(?!a)b", "has negative look-ahead (?!…), which"),
        ("b(?!)", "has negative look-ahead (?!…), which"),
        ("(?<=a)b", "has look-behind (?<=…), which"),
        ("(?<!a)b", "has negative look-behind (?<!…), which"),
        (r"(a)\1", "back-reference"),
        (r"a\b", "word boundary"),
        ("(?>a)b", "atomic"),
        ("a++", "possessive"),
        ("a^b", "^ after the start"),
        ("a$b", "$ before the end"),
        ("(^a)*", "^ after the start"),
        ("(?m)^a", "flag that is not supported; (?i), (?s) and (?x) are"),
        (r"\p{L}+", "write its characters as a class, such as [A-Za-z"),
        (r"a[\P{Lu}]", "write its characters as a class, such as [A-Za-z"),
        ("a{20000}", "repetition"),
        ("(a", "not a regex"),
        ("(" * 2_500 + "a" + ")" * 2_500, "groups that are nested too deep"),
    ],
)
def test_constructs_that_are_not_regular_are_refused_by_name(pattern: str, named: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(named)):
        without_anchors(pattern)


def test_counted_repetition_stays_linear() -> None:
    assert len(compile_regex(r"""(?:[^"\\]|\\["n]){0,200}""").accepting) < 5000


def test_a_regex_without_any_match_is_refused() -> None:
    with pytest.raises(GrammarError):
        compile_regex(r"[^\x00-\x{10FFFF}]")
