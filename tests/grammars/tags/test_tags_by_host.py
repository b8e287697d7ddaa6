"""Structural tags as llguidance follows them, judged by our automata."""

from __future__ import annotations

import json
from functools import cache
from itertools import accumulate
from typing import Any

import pytest
from arbora.grammars import GrammarError
from arbora.grammars.errors import NotCoveredError
from arbora.grammars.host.early_start import may_begin
from arbora.grammars.host.native import HostCompiler
from arbora.grammars.schema import SchemaCompiler
from arbora.grammars.tags import TagCompiler, read_format
from arbora.grammars.tags.special_tokens import SpecialTokens
from arbora.runtime.grammar_spec import GrammarSpec
from grammar_world import CALL_TOKEN, EOS, MODEL_VOCAB, vocabulary
from hypothesis import assume, given, settings
from hypothesis import strategies as st

CALL = "<tool_call>"
SPECIAL = {CALL: b"\xff\x01\xfe"}
TRIGGERS = st.sampled_from([CALL, "ab", "b", "aab", "a" + CALL, CALL + "a"])
ENDS = st.sampled_from(["c", ")", CALL, "\n" + CALL, CALL + "\n", "<end>"])
CONTENTS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"type": "const_string", "value": "ba"},
        {"type": "regex", "pattern": "a{1,2}"},
        {"type": "json_schema", "json_schema": {"enum": [1, 2]}},
    ]
)
PARTS = [CALL, *"abc1()", "\n", "(a ", "aa", "ab", "ba", "bac", "aac)", "1c", "<end>", CALL + "aba)"]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=9)


@st.composite
def triggered(draw: st.DrawFn) -> dict[str, Any]:
    triggers = draw(st.lists(TRIGGERS, min_size=1, max_size=2, unique=True))
    tags = [
        {
            "type": "tag",
            "begin": draw(st.sampled_from(triggers)) + draw(st.sampled_from(["", "a", "c"])),
            "content": draw(CONTENTS),
            "ends": [draw(ENDS)],
        }
        for _ in range(draw(st.integers(1, 2)))
    ]
    begin = draw(st.sampled_from(["(a ", CALL, CALL + "a"]))
    early = [{"type": "tag", "begin": begin, "content": draw(CONTENTS), "ends": [")"]}]
    return {
        "type": "triggered_tags",
        "triggers": triggers,
        "tags": tags,
        "stop_after_first": draw(st.booleans()),
        "at_least_one": draw(st.booleans()),
        "at_start": early if draw(st.booleans()) else [],
        "leads": draw(st.sampled_from([[""], ["", "\n"], ["", "\n\n"]])),
    }


FREE = st.one_of(triggered(), st.just({"type": "any_text"}))
FORMATS = st.one_of(
    FREE,
    st.builds(
        lambda content, is_open, start, end: {
            "type": "thinking",
            "start": start,
            "end": end,
            "is_open": is_open,
            "content": content,
        },
        st.one_of(FREE, CONTENTS),
        st.booleans(),
        st.sampled_from(["(", CALL, "(" + CALL]),
        ENDS,
    ),
)


@cache
def host() -> HostCompiler:
    words = vocabulary()
    tokens = [words.token_bytes(token) for token in range(words.size)] + [b""] * (MODEL_VOCAB - words.size)
    return HostCompiler(tokens, [CALL_TOKEN, EOS, *range(words.size, MODEL_VOCAB)], (EOS,))


@cache
def tags() -> TagCompiler:
    return TagCompiler(SchemaCompiler())


def ends_by_host(text: str, parts: list[str]) -> list[bool]:
    """Whether the text may end behind each of its parts."""
    grammar = host().structural_tag(read_format(text))
    ends = []
    for part in accumulate(parts, lambda one, other: one + other):
        matcher = grammar.matcher()
        tokens = [token for piece in part.replace(CALL, f"\0{CALL}\0").split("\0") for token in read(piece)]
        ends.append(all(matcher.consume(token) is None for token in (*tokens, EOS)))
    return ends


def read(piece: str) -> list[int]:
    return [CALL_TOKEN] if piece == CALL else list(piece.encode())


def ends_by_automaton(text: str, parts: list[str]) -> list[bool]:
    spelled = SpecialTokens(SPECIAL).spelled
    machine = tags().compile(read_format(text), spelled).machine
    return [machine.accepts(spelled(part)) for part in accumulate(parts, lambda one, other: one + other)]


@settings(deadline=None, max_examples=400)
@given(format=FORMATS, parts=TEXTS)
def test_llguidance_begins_only_with_grammars_that_it_follows_as_automata_do(
    format: dict[str, Any], parts: list[str]
) -> None:
    text = json.dumps(format)
    assume(may_begin(GrammarSpec("structural_tag", text)))
    try:
        by_automaton = ends_by_automaton(text, parts)
        by_host = ends_by_host(text, parts)
    except GrammarError:
        assume(False)
    assert by_host == by_automaton


@pytest.mark.parametrize("mark", ["a" + CALL, CALL + "a"])
def test_free_text_that_stops_at_a_special_token_beside_text_waits_for_the_automaton(mark: str) -> None:
    free, call = {"type": "any_text"}, {"type": "const_string", "value": "x"}
    tag = {"type": "tag", "begin": mark, "content": call, "ends": [""]}
    formats = [
        {"type": "triggered_tags", "triggers": [mark], "tags": [tag]},
        {"type": "triggered_tags", "triggers": [], "tags": [], "at_start": [tag]},
        {"type": "thinking", "start": "(", "end": mark, "is_open": True, "content": free},
    ]
    for format in formats:
        with pytest.raises(NotCoveredError):
            host().structural_tag(read_format(json.dumps(format)))


def test_the_text_of_an_end_of_sequence_is_text() -> None:
    content = {"type": "json_schema", "json_schema": {"const": 1}}
    text = json.dumps({"type": "tag", "begin": "(", "content": content, "ends": ["<end>"]})
    assert ends_by_host(text, ["(1", "<end>"]) == ends_by_automaton(text, ["(1", "<end>"]) == [False, True]


def test_a_trigger_that_ends_within_a_special_token_is_not_taken_for_text() -> None:
    tag = {"type": "tag", "begin": CALL, "content": {"type": "const_string", "value": "a"}, "ends": [""]}
    format = {"type": "triggered_tags", "triggers": ["<tool"], "tags": [tag]}
    with pytest.raises(NotCoveredError, match="special token"):
        host().structural_tag(read_format(json.dumps(format)))
