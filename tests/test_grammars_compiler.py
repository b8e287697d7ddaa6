"""Compiled grammars: exact masks, clear refusals, nothing that blocks the caller."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import jsonschema
import numpy as np
import pytest
from arbora.grammars import Automaton, GrammarCompiler, GrammarError, HostGrammar
from arbora.grammars.compiler import HOST_THREADS, MAX_TEXT
from arbora.grammars.host import HostMatcher
from grammar_world import CALL_TOKEN, EOS, MODEL_VOCAB, allowed, compiled, compiler, vocabulary
from llguidance import LLMatcher, LLParserLimits, LLTokenizer


@pytest.fixture(scope="module")
def grammars() -> Iterator[GrammarCompiler]:
    made = compiler()
    yield made
    made.close()


def spelled(tokens: list[int]) -> bytes:
    words = vocabulary()
    return b"".join(words.token_bytes(token) for token in tokens if token != EOS)


def random_output(grammar: HostGrammar, seed: int, steps: int = 400) -> bytes:
    """Tokens drawn evenly from the masks until the end, which is preferred once it is allowed."""
    generator = np.random.default_rng(seed)
    matcher = grammar.matcher()
    mask = np.zeros(-(-MODEL_VOCAB // 32), np.int32)
    tokens: list[int] = []
    for _ in range(steps):
        matcher.fill_mask(mask)
        choices = sorted(allowed(mask))
        token = EOS if EOS in choices else int(generator.choice(choices))
        tokens.append(token)
        assert matcher.consume(token) is None
        if token == EOS:
            return spelled(tokens)
    raise AssertionError("no end")


@pytest.mark.parametrize("pattern", ["(yes|no|yesno)", "[a-c]{2,5}", "ab*c?é", "(?i:YES) (1|2)+", ".{0,3}"])
def test_a_mask_allows_a_token_exactly_when_its_bytes_lead_somewhere(
    grammars: GrammarCompiler, pattern: str
) -> None:
    automaton = compiled(grammars, "regex", pattern)
    assert isinstance(automaton, Automaton)
    words = vocabulary()
    for state in range(len(automaton.transitions)):
        expected = {
            token for token in range(words.size) if _leads_on(automaton, state, words.token_bytes(token))
        }
        expected -= {CALL_TOKEN, EOS}
        got = allowed(automaton.masks[automaton.mask_of_state[state]])
        assert got - {EOS} == expected


def _leads_on(automaton: Automaton, state: int, text: bytes) -> bool:
    for byte in text:
        state = int(automaton.transitions[state, automaton.class_of_byte[byte]])
        if state < 0:
            return False
    return True


def test_the_end_is_allowed_exactly_where_the_text_may_end(grammars: GrammarCompiler) -> None:
    automaton = compiled(grammars, "regex", "a{2,3}")
    assert isinstance(automaton, Automaton)
    state = automaton.start
    ends = []
    for _ in range(4):
        ends.append(EOS in allowed(automaton.masks[automaton.mask_of_state[state]]))
        state = int(automaton.transitions[state, automaton.class_of_byte[ord("a")]])
    assert ends == [False, False, True, True]


def test_tokens_are_spelled_as_automata_read_them(grammars: GrammarCompiler) -> None:
    words = vocabulary()
    tokens = [ord("x"), 256, EOS, 258, words.size - 3]
    assert grammars.spelled(np.array(tokens, np.int32)) == b"x" + b"".join(
        words.token_bytes(token) for token in (256, 258, words.size - 3)
    )
    assert grammars.spelled(np.zeros(0, np.int32)) == b""


def test_equal_masks_are_kept_once(grammars: GrammarCompiler) -> None:
    automaton = compiled(grammars, "regex", "[a-z]{100}")
    assert isinstance(automaton, Automaton)
    assert len(automaton.masks) < 10 < len(automaton.mask_of_state)


def test_a_choice_is_one_of_its_strings(grammars: GrammarCompiler) -> None:
    automaton = compiled(grammars, "choice", ["yes", "yes.no", "é{"])
    assert isinstance(automaton, Automaton)
    for text, fits in [("yes", True), ("yes.no", True), ("é{", True), ("yesXno", False), ("", False)]:
        state = automaton.start
        for byte in text.encode():
            state = int(automaton.transitions[state, automaton.class_of_byte[byte]]) if state >= 0 else -1
        accepts = state >= 0 and EOS in allowed(automaton.masks[automaton.mask_of_state[state]])
        assert accepts == fits


@pytest.mark.parametrize("choices", [[], [""], [1], "yes", {"a": 1}])
def test_a_choice_must_be_a_list_of_strings(grammars: GrammarCompiler, choices: object) -> None:
    result = compiled(grammars, "choice", choices if not isinstance(choices, str) else f'"{choices}"')
    assert isinstance(result, GrammarError)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_drawn_from_the_masks_fits_the_schema(grammars: GrammarCompiler, seed: int) -> None:
    grammar = compiled(grammars, "json_schema", SCHEMA)
    assert isinstance(grammar, HostGrammar)
    text = random_output(grammar, seed)
    jsonschema.validate(json.loads(text), SCHEMA)
    assert (
        text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False).encode()
        or b"\\" in text
    )


def test_a_prefix_is_spelled_with_the_vocabularys_special_tokens(grammars: GrammarCompiler) -> None:
    grammar = compiled(
        grammars, "json_schema", {"enum": [1]}, prefix="<tool_call>\n", suffix="\n", separators=(", ", ": ")
    )
    assert isinstance(grammar, HostGrammar)
    mask = np.zeros(-(-MODEL_VOCAB // 32), np.int32)
    grammar.matcher().fill_mask(mask)
    assert allowed(mask) == {CALL_TOKEN}
    assert random_output(grammar, 1) == b"<tool_call>\n1\n"


def test_a_matcher_that_passes_a_limit_is_an_error_and_not_an_end() -> None:
    tokenizer = LLTokenizer("byte")
    grammar = LLMatcher.grammar_from_regex("(a|b)*a(a|b){9}c")
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(max_lexer_states=30))
    followed = HostMatcher(matcher, (tokenizer.eos_token,))
    mask = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)
    letters = np.random.default_rng(0).choice(list(b"ab"), 100).tolist()
    for letter in letters:
        followed.fill_mask(mask)
        if allowed(mask) == {tokenizer.eos_token}:
            break
        assert followed.consume(letter) is None
    error = followed.consume(tokenizer.eos_token)
    assert error is not None and "too many states" in error


def test_requests_follow_copies_of_their_own(grammars: GrammarCompiler) -> None:
    grammar = compiled(grammars, "json_schema", {"enum": [1, 2]})
    assert isinstance(grammar, HostGrammar)
    first, second = grammar.matcher(), grammar.matcher()
    assert first.consume(ord("1")) is None
    assert second.consume(ord("2")) is None


def test_a_token_outside_the_grammar_is_an_error_that_says_so(grammars: GrammarCompiler) -> None:
    grammar = compiled(grammars, "json_schema", {"enum": [1]})
    assert isinstance(grammar, HostGrammar)
    error = grammar.matcher().consume(ord("x"))
    assert error is not None and "left its grammar" in error


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"properties": {"a": {"not": {"type": "string"}}}}, "'not' at #/properties/a/not"),
        ({"items": {"type": "array", "uniqueItems": True}}, "'uniqueItems' at #/items/uniqueItems"),
        ({"properties": {"d": {"type": "string", "format": "shoe"}}}, "'format' at #/properties/d/format"),
        ({"anyOf": [{"type": "strin"}]}, "'type' at #/anyOf/0/type"),
        ({"properties": {"x": {"$ref": "#/nowhere"}}}, "'$ref' at #/properties/x/$ref"),
        ({"type": "string", "pattern": "(?=a)"}, "'pattern' at #/pattern"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf' at #/oneOf"),
        (False, "allows no value"),
        (3, "an object or a boolean"),
        ("{", "not valid JSON"),
    ],
)
def test_a_schema_that_cant_be_enforced_is_refused_with_keyword_and_path(
    grammars: GrammarCompiler, schema: object, said: str
) -> None:
    result = compiled(grammars, "json_schema", schema)
    assert isinstance(result, GrammarError)
    assert said in str(result)


def test_a_schema_cant_loosen_itself_with_options(grammars: GrammarCompiler) -> None:
    schema = {"enum": [[1, 2]], "x-guidance": {"whitespace_flexible": True, "lenient": True}}
    grammar = compiled(grammars, "json_schema", schema)
    assert isinstance(grammar, HostGrammar)
    assert random_output(grammar, 3) == b"[1,2]"


def test_any_object_is_an_object(grammars: GrammarCompiler) -> None:
    grammar = compiled(grammars, "json_object", "")
    assert isinstance(grammar, HostGrammar)
    mask = np.zeros(-(-MODEL_VOCAB // 32), np.int32)
    grammar.matcher().fill_mask(mask)
    assert all(spelled([token]).startswith(b"{") for token in allowed(mask))


def test_an_automaton_too_large_for_tables_is_left_to_the_host(grammars: GrammarCompiler) -> None:
    grammar = compiled(grammars, "regex", r"(.*a){200}[^b]{0,9999}")
    assert isinstance(grammar, HostGrammar)
    assert isinstance(compiled(grammars, "regex", "after"), Automaton)


def test_the_same_grammar_is_compiled_once(grammars: GrammarCompiler) -> None:
    assert compiled(grammars, "regex", "once?") is compiled(grammars, "regex", "once?")


def test_a_cancelled_ticket_is_never_answered(grammars: GrammarCompiler) -> None:
    grammars.submit("gone", "regex", "gone")
    grammars.cancel("gone")
    assert grammars.pending == 0
    assert isinstance(compiled(grammars, "regex", "gone"), Automaton)


SLOW_SCHEMA = {
    "type": "object",
    "properties": {f"p{i}": {"type": "integer", "minimum": i, "maximum": 10**9 + i} for i in range(900)},
}


def test_a_slow_schema_holds_up_no_other() -> None:
    grammars = compiler()
    for number in range(HOST_THREADS - 1):
        grammars.submit(f"slow{number}", "json_schema", json.dumps({**SLOW_SCHEMA, "title": str(number)}))
    grammars.submit("quick", "json_schema", '{"enum":[1]}')
    while not (finished := grammars.finished()):
        time.sleep(0.001)
    assert [ticket for ticket, _ in finished] == ["quick"]
    grammars.close()


def test_a_cancelled_grammar_that_was_not_begun_never_is() -> None:
    grammars = compiler()
    for number in range(HOST_THREADS):
        grammars.submit(f"slow{number}", "json_schema", json.dumps({**SLOW_SCHEMA, "title": str(number)}))
    grammars.submit("first", "json_schema", '{"enum":[1]}')
    queued = grammars._tickets["first"].future
    grammars.submit("second", "json_schema", '{"enum":[1]}')
    grammars.cancel("first")
    assert not queued.cancelled(), "the second waits for it"
    grammars.cancel("second")
    assert queued.cancelled()
    assert isinstance(compiled_meanwhile(grammars, '{"enum":[1]}'), HostGrammar)
    grammars.close()


def compiled_meanwhile(grammars: GrammarCompiler, schema: str) -> object:
    """Like `compiled`, while others are being compiled."""
    grammars.submit("meanwhile", "json_schema", schema)
    while True:
        for ticket, result in grammars.finished():
            if ticket == "meanwhile":
                return result
        time.sleep(0.001)


@pytest.mark.parametrize("kind", ["json_schema", "regex", "choice"])
def test_a_grammar_that_is_too_long_to_parse_is_refused_with_the_numbers(
    grammars: GrammarCompiler, kind: str
) -> None:
    result = compiled(grammars, kind, "a" * (MAX_TEXT + 1))
    assert isinstance(result, GrammarError)
    assert str(MAX_TEXT + 1) in str(result) and str(MAX_TEXT) in str(result)


def test_a_larger_schema_counts_for_more_memory(grammars: GrammarCompiler) -> None:
    small, large = (compiled(grammars, "json_schema", {"enum": list(range(n))}) for n in (2, 2000))
    assert isinstance(small, HostGrammar) and isinstance(large, HostGrammar)
    assert 0 < small.nbytes < large.nbytes
