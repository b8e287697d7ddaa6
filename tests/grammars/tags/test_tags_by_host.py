"""llguidance accepts the same texts for a structural tag as our automata."""

from __future__ import annotations

import json
from functools import cache
from itertools import accumulate

import pytest
from arbora.grammars.errors import NotCoveredError
from arbora.grammars.host.native import HostCompiler
from arbora.grammars.tags.special_tokens import SpecialTokens
from arbora.runtime.grammar_spec import GrammarSpec
from grammar_world import CALL_TOKEN, EOS, MODEL_VOCAB, vocabulary
from json_automata import compile_tag

CALL = "<tool_call>"
SPECIAL = {CALL: b"\xff\x01\xfe"}


@cache
def host() -> HostCompiler:
    words = vocabulary()
    tokens = [words.token_bytes(token) for token in range(words.size)] + [b""] * (MODEL_VOCAB - words.size)
    return HostCompiler(tokens, [CALL_TOKEN, EOS, *range(words.size, MODEL_VOCAB)], (EOS,))


def ends_by_host(text: str, parts: list[str]) -> list[bool]:
    """Whether the text may end after each of its parts."""
    grammar = host().compile(GrammarSpec("structural_tag", text))
    ends = []
    for part in accumulate(parts, lambda one, other: one + other):
        matcher = grammar.matcher()
        tokens = [token for piece in part.replace(CALL, f"\0{CALL}\0").split("\0") for token in read(piece)]
        ends.append(all(matcher.consume(token) is None for token in (*tokens, EOS)))
    return ends


def read(piece: str) -> list[int]:
    return [CALL_TOKEN] if piece == CALL else list(piece.encode())


def ends_by_automaton(text: str, parts: list[str]) -> list[bool]:
    bytes_of = SpecialTokens(SPECIAL).bytes_of
    machine = compile_tag(json.loads(text), bytes_of).machine
    return [machine.accepts(bytes_of(part)) for part in accumulate(parts, lambda one, other: one + other)]


@pytest.mark.parametrize("mark", ["a" + CALL, CALL + "a"])
def test_llguidance_refuses_free_text_that_stops_at_a_special_token_beside_text(mark: str) -> None:
    free, call = {"type": "any_text"}, {"type": "const_string", "value": "x"}
    tag = {"type": "tag", "begin": mark, "content": call, "ends": [""]}
    formats = [
        {"type": "triggered_tags", "triggers": [mark], "tags": [tag]},
        {"type": "triggered_tags", "triggers": [], "tags": [], "at_start": [tag]},
        {"type": "thinking", "start": "(", "end": mark, "is_open": True, "content": free},
    ]
    for format in formats:
        with pytest.raises(NotCoveredError):
            host().compile(GrammarSpec("structural_tag", json.dumps(format)))


def test_the_text_of_an_end_of_sequence_is_text() -> None:
    content = {"type": "json_schema", "json_schema": {"const": 1}}
    text = json.dumps({"type": "tag", "begin": "(", "content": content, "ends": ["<end>"]})
    assert ends_by_host(text, ["(1", "<end>"]) == ends_by_automaton(text, ["(1", "<end>"]) == [False, True]


def test_a_trigger_that_ends_within_a_special_token_is_not_taken_for_text() -> None:
    tag = {"type": "tag", "begin": CALL, "content": {"type": "const_string", "value": "a"}, "ends": [""]}
    format = {"type": "triggered_tags", "triggers": ["<tool"], "tags": [tag]}
    with pytest.raises(NotCoveredError, match="special token"):
        host().compile(GrammarSpec("structural_tag", json.dumps(format)))
