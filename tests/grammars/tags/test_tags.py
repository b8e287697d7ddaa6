"""Structural tags: the texts that their automata accept, judged by regular expressions and by parsing."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import numpy as np
import pytest
from arbora.grammars import Automaton, GrammarCompiler, GrammarError, HostGrammar
from arbora.grammars.errors import NotCoveredError
from grammar_world import CALL_TOKEN, EOS, Follower, compiled, compiler, spelled
from hypothesis import given, settings
from hypothesis import strategies as st
from json_automata import compile_tag
from pydantic import BaseModel, HttpUrl

TEXTS = ["".join(letters) for length in range(7) for letters in itertools.product("ab", repeat=length)]
WORDS = st.text("ab", min_size=1, max_size=2)
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Bob"]}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}
CALL = {"begin": '<tool_call>{"f": ', "content": {"type": "json_schema", "json_schema": PERSON}}


def json_tag(begin: str, end: str, schema: Any = PERSON) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": begin, "content": content, "ends": [end]}


def word(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def accepted(format: dict[str, Any], texts: list[str]) -> list[str]:
    machine = compile_tag(format).machine
    return [text for text in texts if machine.accepts(text.encode())]


def until(*words: str) -> str:
    return f"(?:(?!{'|'.join(words)}).)*"


FORMATS: st.SearchStrategy[tuple[dict[str, Any], str]] = st.recursive(
    WORDS.map(lambda text: (word(text), text)),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: (
                {"type": "sequence", "elements": [format for format, _ in parts]},
                "".join(regex for _, regex in parts),
            )
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: (
                {"type": "or", "elements": [format for format, _ in parts]},
                f"(?:{'|'.join(regex for _, regex in parts)})",
            )
        ),
        st.tuples(st.text("ab", max_size=1), inner, st.text("ab", max_size=1)).map(
            lambda parts: (
                {"type": "tag", "begin": parts[0], "content": parts[1][0], "ends": [parts[2]]},
                f"{parts[0]}{parts[1][1]}{parts[2]}",
            )
        ),
        st.tuples(inner, WORDS).map(
            lambda parts: (
                {"type": "sequence", "elements": [parts[0][0], {"type": "any_text"}, word(parts[1])]},
                f"{parts[0][1]}{until(parts[1])}{parts[1]}",
            )
        ),
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(FORMATS)
def test_formats_accept_the_texts_that_their_regexes_match(case: tuple[dict[str, Any], str]) -> None:
    format, regex = case
    assert accepted(format, TEXTS) == [text for text in TEXTS if re.fullmatch(regex, text)]


@pytest.mark.parametrize("at_least_one", [False, True])
@pytest.mark.parametrize("stop_after_first", [False, True])
def test_triggers_begin_tags_in_any_text(at_least_one: bool, stop_after_first: bool) -> None:
    listed = [{"type": "tag", **word_tag("ab", "b")}, {"type": "tag", **word_tag("aa", "")}]
    format = {"type": "triggered_tags", "triggers": ["a"], "tags": listed}
    options = {"at_least_one": at_least_one, "stop_after_first": stop_after_first}
    call, free = "(?:abab|aaa)", "b*"
    if at_least_one:
        regex = call if stop_after_first else f"{call}(?:{free}{call})*{free}"
    else:
        regex = f"{free}(?:{call})?" if stop_after_first else f"(?:{free}{call})*{free}"
    assert accepted(format | options, TEXTS) == [text for text in TEXTS if re.fullmatch(regex, text)]


def word_tag(begin: str, end: str) -> dict[str, Any]:
    return {"begin": begin, "content": word("a"), "ends": [end]}


@pytest.mark.parametrize("at_least_one", [False, True])
@pytest.mark.parametrize("stop_after_first", [False, True])
def test_only_the_separator_is_between_tags(at_least_one: bool, stop_after_first: bool) -> None:
    listed = [{"type": "tag", **word_tag("a", "")}, {"type": "tag", **word_tag("b", "b")}]
    format = {"type": "tags_with_separator", "tags": listed, "separator": "b"}
    options = {"at_least_one": at_least_one, "stop_after_first": stop_after_first}
    tag = "(?:aa|bab)"
    regex = tag if stop_after_first else f"{tag}(?:b{tag})*"
    regex = regex if at_least_one else f"(?:{regex})?"
    assert accepted(format | options, TEXTS) == [text for text in TEXTS if re.fullmatch(regex, text)]


def test_any_text_in_a_tag_goes_up_to_the_first_of_its_ends() -> None:
    format = {"type": "tag", "begin": "a", "content": {"type": "any_text"}, "ends": ["bb", "ba"]}
    regex = f"a{until('bb', 'ba')}(?:bb|ba)"
    assert accepted(format, TEXTS) == [text for text in TEXTS if re.fullmatch(regex, text)]


def test_a_tag_at_the_start_counts_there_and_after_another_tag() -> None:
    format = {"type": "triggered_tags", "triggers": [], "tags": [], "at_start": [json_tag("{", "}", False)]}
    format["at_start"] = [{"type": "tag", **word_tag("ab", "")}]
    regex = r"(?:aba)*(?!ab).*"
    assert accepted(format, TEXTS) == [text for text in TEXTS if re.fullmatch(regex, text)]


def test_a_number_continues_or_ends_at_the_following_byte() -> None:
    number = {"type": "json_schema", "json_schema": {"type": "integer"}}
    texts = ["112", "1212", "-312", "1", "12", "120", "12x"]
    assert accepted({"type": "sequence", "elements": [number, word("12")]}, texts) == texts[:3]


def test_alternative_schemas_may_begin_alike() -> None:
    tree = {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}
    formats = [
        {"type": "json_schema", "json_schema": schema} for schema in (PERSON, {"const": {"x": 1}}, tree)
    ]
    texts = ['{"name":"Ada"}', '{"x":1}', "[[],[[]]]", '{"y":1}', "[1]"]
    assert accepted({"type": "or", "elements": formats}, texts) == texts[:3]


@pytest.mark.parametrize(
    ("format", "reason"),
    [
        ({"type": "or", "elements": [CALL["content"], json_tag('{"', "")]}, "begin with b'{'"),
        ({"type": "sequence", "elements": [{"type": "any_text"}, CALL["content"]]}, "fixed text"),
        (json_tag("<", ">", {"type": "strin"}), "strin"),
    ],
)
def test_a_format_that_cannot_be_compiled_says_why(format: Any, reason: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(reason)):
        accepted(format, [])


THINKING = {"type": "thinking", "start": "<t>", "end": "</t>"}


@pytest.mark.parametrize(
    "content",
    [CALL["content"], {"type": "triggered_tags", "triggers": ["<c>"], "tags": [json_tag("<c>", "")]}],
)
def test_reasoning_is_free_text_until_its_end(content: dict[str, Any]) -> None:
    answer = "<c>" * ("tags" in content) + '{"name":"Ada"}'
    thought = "<c> {</t"
    opened = [f"{thought}</t>{answer}", f"</t>\n\n{answer}"]
    closed = [answer, f"<t>{thought}</t>\n\n{answer}"]
    wrong = [thought, f"<t>{thought}", f"{thought}</t>{answer[:-1]}"]
    format = THINKING | {"content": content}
    assert accepted(format | {"is_open": True}, opened + wrong) == opened
    assert accepted(format | {"is_open": False}, closed + wrong[1:]) == closed


def test_reasoning_that_begins_as_its_answer_may_is_left_out() -> None:
    format = {"type": "thinking", "start": "[T]", "end": "[/T]", "is_open": False}
    content = {"type": "json_schema", "json_schema": {"type": "array"}}
    assert accepted(format | {"content": content}, ["[1]", "[T]a[/T][1]"]) == ["[1]"]


@pytest.fixture(scope="module")
def grammars() -> Iterator[GrammarCompiler]:
    made = compiler()
    yield made
    made.close()


def automaton(grammars: GrammarCompiler, format: dict[str, Any]) -> Automaton:
    made = compiled(grammars, "structural_tag", format)
    assert isinstance(made, Automaton), made
    return made


def calls(**options: Any) -> dict[str, Any]:
    """Tags between a special token and text."""
    tag = {"type": "tag", **CALL, "ends": ["}"]}
    return {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [tag], **options}


def test_a_special_token_that_a_format_names_is_that_token(grammars: GrammarCompiler) -> None:
    follower = Follower(automaton(grammars, calls()))
    assert {CALL_TOKEN, EOS} < follower.allowed()
    for byte in b"<tool_call>x":
        follower.take(byte)
    assert EOS in follower.allowed()  # the same letters are just text
    follower.take(CALL_TOKEN)
    assert follower.allowed() == {ord("{"), 260}


def test_other_grammars_allow_no_special_tokens(grammars: GrammarCompiler) -> None:
    for kind, source in (("regex", r"[\s\S]*"), ("json_schema", {"type": "string"})):
        made = compiled(grammars, kind, source)
        assert isinstance(made, Automaton)
        follower = Follower(made)
        assert CALL_TOKEN not in follower.allowed()
        follower.take(ord('"'))
        assert CALL_TOKEN not in follower.allowed()


def test_bytes_that_no_text_contains_are_in_no_reply(grammars: GrammarCompiler) -> None:
    assert not set(range(0xF5, 256)) & Follower(automaton(grammars, calls())).allowed()


@pytest.mark.parametrize("seed", range(12))
def test_random_replies_consist_of_whole_calls(grammars: GrammarCompiler, seed: int) -> None:
    random = np.random.default_rng(seed)
    follower, tokens = Follower(automaton(grammars, calls())), list[int]()
    while True:
        choices = sorted(follower.allowed())
        weights = np.array(
            [30.0 if token in (CALL_TOKEN, EOS, ord('"'), ord("}")) else 1.0 for token in choices]
        )
        token = int(random.choice(choices, p=weights / weights.sum()))
        if token == EOS:
            break
        tokens.append(token)
        follower.take(token)
    for reply in spelled(tokens).split(b"<tool_call>")[1 : tokens.count(CALL_TOKEN) + 1]:
        if reply.startswith(b'{"f": '):
            value, _ = json.JSONDecoder().raw_decode(reply[6:].decode(errors="replace"))
            jsonschema.validate(value, PERSON)


def test_tools_that_are_too_large_become_free_text_and_are_listed(grammars: GrammarCompiler) -> None:
    names = {f"{place:04}": {"type": "string", "maxLength": 10 + place} for place in range(3000)}
    big = {"type": "object", "properties": names, "additionalProperties": False}
    content = {"type": "json_schema", "json_schema": big, "function": "f", "otherwise": "object"}
    tag = {"type": "tag", "begin": "<f>", "content": content, "ends": [""]}
    made = automaton(grammars, {"type": "triggered_tags", "triggers": ["<f>"], "tags": [tag]})
    assert made.left_out == (("parameters", "f#"),)


def test_a_schema_that_is_refused_names_its_function(grammars: GrammarCompiler) -> None:
    content = {"type": "json_schema", "json_schema": {"type": "strin"}, "function": "f"}
    refused = compiled(
        grammars, "structural_tag", {"type": "tag", "begin": "", "content": content, "ends": [""]}
    )
    assert isinstance(refused, GrammarError)
    assert "#/type of the function 'f'" in str(refused) and "strin" in str(refused)


UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}

HOSTED: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "a grammar behind reasoning": (
        THINKING | {"is_open": True, "content": {"type": "grammar", "grammar": 'start: "a" b\nb: "b"+'}},
        ["x</t>abb", "</t>\n\nab"],
        ["ab", "x</t>b", "x"],
    ),
    "a grammar behind reasoning with a special mark": (
        {"type": "thinking", "start": "?", "end": "<tool_call>", "is_open": True}
        | {"content": {"type": "grammar", "grammar": 'root ::= "a" [b]+'}},
        [("x<tool_call> ", CALL_TOKEN, "abb")],
        [("x<tool_call>abb",)],
    ),
    "a grammar that reasoning may come before": (
        THINKING | {"is_open": False, "content": {"type": "grammar", "grammar": 'start: "ab"'}},
        ["ab", "<t>x</t>ab"],
        ["x</t>ab", "<t>x"],
    ),
}


@pytest.mark.parametrize("name", list(HOSTED))
def test_llguidance_follows_grammars_without_an_automaton(grammars: GrammarCompiler, name: str) -> None:
    format, good, bad = HOSTED[name]
    made = compiled(grammars, "structural_tag", format)
    assert isinstance(made, HostGrammar), made
    assert [follows(made, text) for text in good] == [True] * len(good)
    assert [follows(made, text) for text in bad] == [False] * len(bad)


def follows(grammar: HostGrammar, text: Any) -> bool:
    """Whether the tokens, or texts byte by byte, are a complete reply."""
    matcher = grammar.matcher()
    for part in [text] if isinstance(text, str) else text:
        for token in [part] if isinstance(part, int) else part.encode():
            if matcher.consume(token) is not None:
                return False
    return matcher.consume(EOS) is None


def test_a_schema_that_neither_engine_can_follow_is_refused_with_keyword_and_path(
    grammars: GrammarCompiler,
) -> None:
    format = {"type": "triggered_tags", "triggers": ["<t>"], "tags": [json_tag("<t>", "", UNIQUE)]}
    refused = compiled(grammars, "structural_tag", format)
    assert (
        isinstance(refused, GrammarError)
        and "uniqueItems" in str(refused)
        and "#/uniqueItems" in str(refused)
    )
    free = {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "ends": [""]}
    for format in (
        json_tag("<t>", "", UNIQUE),
        {"type": "or", "elements": [free, json_tag("(", ")", UNIQUE)]},
    ):
        refused = compiled(grammars, "structural_tag", format)
        assert isinstance(refused, GrammarError) and "uniqueItems" in str(refused)


def test_an_invalid_grammar_after_reasoning_is_refused_with_its_own_message(
    grammars: GrammarCompiler,
) -> None:
    format = THINKING | {"is_open": True, "content": {"type": "grammar", "grammar": "pair = a"}}
    refused = compiled(grammars, "structural_tag", format)
    assert isinstance(refused, GrammarError) and "neither Lark nor GBNF" in str(refused)


def test_copies_have_separate_pushes_and_counts() -> None:
    names = {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 120}}
    trees = {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "string", "pattern": "^[éà]*$"}]}}
    parts = [{"type": "json_schema", "json_schema": schema} for schema in (trees, names, trees, names)]
    format = {"type": "sequence", "elements": [*parts[:2], word("."), *parts[2:]]}
    good = ['[["é"],[]]["éab"].[]["ab"]', f'[]["{"é" * 120}"].[["àé",["à"]]]["\\u00e9b","{"b" * 120}"]']
    bad = ['[["é"],[]]["é"].[]["ab"]', f'[]["{"é" * 121}"].[]["ab"]', f'[]["ab"].[["b"]]["{"b" * 12}"]']
    assert accepted(format, good + bad) == good


def test_copies_of_a_pattern_have_separate_counts() -> None:
    names = {"type": "array", "items": {"type": "string", "pattern": "^[bé]+$", "maxLength": 120}}
    other = {"type": "string", "pattern": "^(?:ab)+$", "maxLength": 300}
    parts = [{"type": "json_schema", "json_schema": schema} for schema in (names, other, names)]
    format = {"type": "sequence", "elements": [parts[0], word("."), *parts[1:]]}
    good = [f'["{"é" * 120}","{"b" * 120}"]."{"ab" * 150}"["\\u00e9b"]', '[]."ab"[]']
    bad = [f'["{"é" * 121}"]."ab"[]', f'[]."{"ab" * 151}"[]', f'[]."ab"["{"b" * 121}"]', '["a"]."ab"[]']
    assert accepted(format, good + bad) == good


class Links(BaseModel):
    urls: set[HttpUrl]
    kinds: set[Literal["a", "b"]] = set()


def test_a_functions_sets_of_urls_are_left_to_the_check_of_its_calls() -> None:
    content = {"type": "json_schema", "json_schema": Links.model_json_schema(), "function": "open"}
    tag = {"type": "tag", "begin": "<open>", "content": content, "ends": ["</call>"]}
    for unenforced in ("annotations", "allow"):
        machine, left_out = compile_tag(tag, unenforced=unenforced)
        assert left_out == (("uniqueItems", "open#/properties/urls/uniqueItems"),)
        url = "https://a.b/" + "c" * 2071
        assert machine.accepts(f'<open>{{"urls":["{url}"],"kinds":["b","a"]}}</call>'.encode())
        assert not machine.accepts(f'<open>{{"urls":["{url}c"]}}</call>'.encode())
        assert not machine.accepts(b'<open>{"urls":["no url"]}</call>')
    with pytest.raises(
        NotCoveredError, match="'uniqueItems' at #/properties/urls/uniqueItems of the function"
    ):
        compile_tag(tag)


def test_the_strings_of_all_tools_share_their_masks(grammars: GrammarCompiler) -> None:
    def masks(count: int) -> int:
        schemas = [{"type": "object", "properties": {f"key{i}": {"type": "string"}}} for i in range(count)]
        listed = [json_tag(f"<t>{i}", "</t>", schema) for i, schema in enumerate(schemas)]
        return len(automaton(grammars, calls(triggers=["<t>"], tags=listed)).tables.masks)

    assert masks(60) == masks(30)
