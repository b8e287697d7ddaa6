"""Forced text, and the tokens that are sure of it."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

import pytest
import tokenizers
from arbora.grammars import ForcedText, ForcedTextTokenizer, forced_text
from arbora.grammars.host.native import HostCompiler, NativeMatcher
from arbora.grammars.machine.automaton import Automaton
from arbora.grammars.machine.stack_automaton import CHOICE, END
from arbora.runtime.automaton_format import DEAD
from arbora.runtime.grammar_spec import GrammarSpec
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from json_automata import compile_schema
from stack_automata import random_grammar, unmasked
from tokenizers_for_tests import KINDS, tokenizer_of_kind

each_kind = pytest.mark.parametrize("kind", list(KINDS))
pieces = st.sampled_from(
    [
        '{"',
        '":',
        '","',
        '"',
        "name",
        "arg",
        "uments",
        " ",
        "  ",
        "\n",
        "1",
        "23",
        "'",
        "ll",
        "é",
        "你",
        "<th",
        "ink>",
    ]
)
texts = st.lists(pieces, max_size=5).map("".join)


def form(**properties: object) -> dict[str, object]:
    required = {"type": "object", "required": list(properties), "additionalProperties": False}
    return {**required, "properties": properties}


PERSON = form(name={"type": "string"}, home=form(arguments={}))


def with_schema(schema: object) -> Automaton:
    text = json.dumps(schema)
    return unmasked(compile_schema(text, whitespace=(",", ":")))


def after(grammar: Automaton, text: bytes) -> ForcedText:
    stack: list[int] = []
    state = grammar.machine.walk(grammar.machine.start, stack, text)
    return forced_text(grammar.machine, grammar.forced, state, stack)


def backend(kind: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(KINDS[kind]())


@functools.cache
def segmenter(kind: str) -> ForcedTextTokenizer:
    tokenizer = tokenizer_of_kind(kind)
    vocabulary = tokenizer.vocabulary(tokenizer.vocab_size).for_automata()
    spelled = [vocabulary.token_bytes(token) for token in range(vocabulary.size)]
    encode = backend(kind).encode
    return ForcedTextTokenizer(
        lambda text: encode(text, add_special_tokens=False).ids,
        spelled,
        tokenizer.special_tokens,
        tokenizer.eos_tokens,
    )


def tokens_of(kind: str, text: str) -> list[int]:
    """As they stand in the middle of a text."""
    line = backend(kind).encode("\n", add_special_tokens=False).ids
    tokens: list[int] = backend(kind).encode("\n" + text, add_special_tokens=False).ids
    assume(tokens[: len(line)] == line)
    return tokens[len(line) :]


def spelled(kind: str, tokens: Sequence[int]) -> bytes:
    return b"".join(tokenizer_of_kind(kind).token_bytes(token) for token in tokens)


def test_a_schema_forces_the_text_between_its_values() -> None:
    grammar = with_schema(PERSON)
    assert after(grammar, b"").text == b'{"name":"'
    between = after(grammar, b'{"name":"Ada"')
    assert between.text == b',"home":{"arguments":'
    assert {*b'{["-0tfn'} <= {*between.following}
    assert not between.ends


def test_text_is_forced_beyond_the_level_where_it_begins() -> None:
    grammar = with_schema(PERSON)
    assert after(grammar, b'{"name":"","home":{"arguments":true') == ForcedText(b"}}", b"", True)


def test_a_place_with_a_choice_forces_nothing() -> None:
    assert after(with_schema(PERSON), b'{"name":"A').text == b""


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 5000), stack=st.booleans())
def test_a_forced_byte_is_the_only_byte_that_leads_on(seed: int, stack: bool) -> None:
    machine = random_grammar(seed, stack).machine
    for state, forced in enumerate(machine.forced().tolist()):
        live = [
            byte for byte in range(256) if machine.transitions[state, machine.class_of_byte[byte]] != DEAD
        ]
        accepts = bool(machine.accepting[state])
        if len(live) + accepts == 1:
            assert forced == (END if accepts else live[0])
        else:
            assert forced == CHOICE


@each_kind
@settings(max_examples=150, deadline=None)
@given(text=texts, rest=texts.filter(len), others=st.binary(max_size=3))
def test_sure_tokens_are_tokens_of_the_text_with_any_continuation(
    kind: str, text: str, rest: str, others: bytes
) -> None:
    following = bytes(sorted({rest.encode()[0], *others}))
    sure = segmenter(kind).sure_tokens(ForcedText(text.encode(), following, False))
    whole = tokens_of(kind, text + rest)
    assume(spelled(kind, whole) == (text + rest).encode())
    assert whole[: len(sure)] == list(sure)


@each_kind
@settings(max_examples=60, deadline=None)
@given(text=texts, cut=st.integers(0, 20))
def test_a_text_that_is_cut_inside_a_character_has_sure_tokens_before_it(
    kind: str, text: str, cut: int
) -> None:
    data = text.encode()
    assume(cut < len(data))
    sure = segmenter(kind).sure_tokens(ForcedText(data[:cut], data[cut : cut + 1], False))
    assert tokens_of(kind, text)[: len(sure)] == list(sure) or spelled(kind, tokens_of(kind, text)) != data
    assert data.startswith(spelled(kind, sure))


@each_kind
def test_names_are_sure_up_to_the_quote_that_may_merge(kind: str) -> None:
    sure = segmenter(kind).sure_tokens(ForcedText(b'{"name":"arguments', b'"', False))
    assert b'{"name'.startswith(spelled(kind, sure)[:6])
    assert len(spelled(kind, sure)) >= 6


@each_kind
def test_all_of_a_text_is_sure_where_the_reply_ends(kind: str) -> None:
    end = tokenizer_of_kind(kind).eos_tokens[0]
    sure = segmenter(kind).sure_tokens(ForcedText(b'"name"}', b"", True))
    assert sure[-1] == end
    assert spelled(kind, sure[:-1]) == b'"name"}'


@each_kind
def test_text_that_the_tokenizer_reads_as_a_special_token_is_never_forced(kind: str) -> None:
    assert segmenter(kind).sure_tokens(ForcedText(b'"<|im_end|>"}', b"", True)) == ()


@each_kind
@settings(max_examples=60, deadline=None)
@given(text=texts, skipped=st.integers(0, 9))
def test_the_end_of_a_reply_has_tokens_wherever_it_begins(kind: str, text: str, skipped: int) -> None:
    ending = text.encode()[skipped:]
    tokens = segmenter(kind).ending_tokens(ending)
    assert tokens is not None and spelled(kind, tokens) == ending


@each_kind
def test_an_end_with_a_special_token_in_it_has_that_token(kind: str) -> None:
    vocabulary = tokenizer_of_kind(kind).vocabulary(tokenizer_of_kind(kind).vocab_size)
    special = next(iter(vocabulary.special_names.values()))
    ending = b'"}' + vocabulary.for_automata().token_bytes(special) + b"\n"
    tokens = segmenter(kind).ending_tokens(ending)
    assert tokens is not None and tokens.count(special) == 1
    before, after = tokens[: tokens.index(special)], tokens[tokens.index(special) + 1 :]
    assert (spelled(kind, before), spelled(kind, after)) == (b'"}', b"\n")


@each_kind
def test_an_end_that_reads_like_a_special_token_is_spelled_in_bytes(kind: str) -> None:
    tokens = segmenter(kind).ending_tokens(b"<|im_end|>")
    assert tokens is not None and len(tokens) == 10


BYTES = [*(bytes([byte]) for byte in range(256)), b"<end>"]


def host_matcher(grammar: str) -> NativeMatcher:
    return HostCompiler(BYTES, [256], (256,)).compile(GrammarSpec("grammar", grammar)).matcher()


def test_a_host_grammar_reports_its_forced_text() -> None:
    matcher = host_matcher('start: "Dear " /[A-Z]+/ "! Yé" "s"?')
    told = [matcher.forced_text()]
    for byte in b"Dear A!":
        assert matcher.consume(byte) is None
        told.append(matcher.forced_text())
    assert told == [b"Dear ", b"ear ", b"ar ", b"r ", b" ", b"", b"", " Yé".encode()]


def test_a_grammar_of_the_host_that_was_left_forces_nothing() -> None:
    matcher = host_matcher('start: "Dear"')
    assert matcher.consume(ord("x")) is not None
    assert matcher.forced_text() == b""
