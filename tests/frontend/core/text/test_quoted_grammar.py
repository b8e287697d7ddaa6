"""Grammars for text inside the quotes of a JSON string."""

from __future__ import annotations

import re

import pytest
from arbora.frontend.core.text.quoted_grammar import (
    QuotingError,
    quoted_lark,
    quoted_pattern,
    quoted_text,
)
from codex import PATCH_GRAMMAR
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher
from llguidance_bytes import TOKENIZER

PATTERNS = (
    r"(.+)",
    r"[^\"\\]*",
    "a\n|b{2,3}?",
    r"\d+ \w*\S",
    r"(?i:ab)c",
    r"[\s\S]x?",
    "é|\U0001f600",
    "[^\n]+",
    r"[\x00-\x1f]",
    r"\W\D",
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.text(
    st.sampled_from('ab1 x"\\\n\té/\x01'), max_size=6
)


@given(st.sampled_from(PATTERNS), TEXTS)
def test_a_quoted_pattern_matches_the_quoted_texts(pattern: str, text: str) -> None:
    found = re.fullmatch(pattern, text, re.ASCII) is not None
    assert (re.fullmatch(quoted_pattern(pattern), quoted_text(text)) is not None) == found


@pytest.mark.parametrize("pattern", ["(", "a{1,99999999999}", "^a", r"a\b", "(a)\\1", "(?=a)", "[^\\s\\S]"])
def test_a_pattern_without_a_quoted_form_is_refused(pattern: str) -> None:
    with pytest.raises(QuotingError):
        quoted_pattern(pattern)


PATCH = '*** Begin Patch\n*** Add File: a "b"\\c.txt\n+Grüße\t1\n+\n*** End Patch\n'


def accepts(grammar: str, text: str) -> bool:
    """Whether the grammar matches the whole text."""
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    "text",
    [PATCH, PATCH.rstrip("\n"), PATCH.replace("+", "-"), PATCH.replace("Begin", "begin"), "", PATCH + "x"],
)
def test_the_quoted_patches_of_codex_are_those_that_the_grammar_matches(text: str) -> None:
    plain = accepts(PATCH_GRAMMAR, text)
    assert accepts(quoted_lark(PATCH_GRAMMAR), quoted_text(text)) == plain
    assert plain == (text in (PATCH, PATCH.rstrip("\n")))
    if "\n" in text:
        assert not accepts(quoted_lark(PATCH_GRAMMAR), text), "a line break has to be escaped"


LARK = r"""start: "a\n" WS? /x\/"/ "B"i END // "c"
# d
%import common (INT, WS)
END: /\d{2}|[^\n]+/
"""


@pytest.mark.parametrize("end", ["12", '1 "', "1\n", "", "é\t"])
def test_strings_terminals_and_comments_of_lark(end: str) -> None:
    quoted = quoted_lark(LARK)
    assert "// " not in quoted
    assert accepts(quoted, quoted_text(f'a\n \tx/"b{end}')) == (bool(end) and "\n" not in end)


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ('start: "a".."z"', "range"),
        ("%json {}", "%json"),
        ("%ignore WS", "%ignore"),
        ("start: <think>", "<think>"),
        ('start: "\\x"', "wrong"),
        ("start: /a/q", "'q'"),
        ("%import common.SQL", "common.SQL"),
        ("start: ~A", "complement"),
    ],
)
def test_a_grammar_without_a_quoted_form_is_refused(grammar: str, said: str) -> None:
    with pytest.raises(QuotingError, match=said):
        quoted_lark(grammar)
