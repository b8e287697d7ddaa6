"""JSON schemas: automata if possible, otherwise llguidance's matchers, and clear refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import jsonschema
import pytest
from arbora.grammars import Automaton, CompilerError, GrammarCompiler, GrammarError, HostGrammar
from arbora.runtime.automaton_format import GAP_PLACES
from grammar_world import (
    Follower,
    HostFollower,
    compiled,
    compiler,
    random_output,
    spelled,
)
from stack_automata import after_text

TOO_MANY_LETTERS = "".join(map(chr, range(0x4E00, 0x4E00 + 5000)))
TOO_MANY_STATES = "^(a|b)*a(a|b){12}$"


@pytest.fixture(scope="module")
def grammars() -> Iterator[GrammarCompiler]:
    made = compiler()
    yield made
    made.close()


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


def is_compact(text: bytes) -> bool:
    """Whether there is no white space outside of strings."""
    return not re.search(rb"\s", re.sub(rb'"(\\.|[^"\\])*"', b"", text))


@pytest.mark.parametrize("seed", range(20))
def test_every_text_drawn_from_the_masks_fits_the_schema(grammars: GrammarCompiler, seed: int) -> None:
    for whitespace in ("model", "compact", "indented"):
        grammar = compiled(grammars, "json_schema", SCHEMA, whitespace=whitespace)
        assert isinstance(grammar, Automaton)
        text = random_output(grammar, seed)
        value = json.loads(text)
        jsonschema.validate(value, SCHEMA)
        assert is_compact(text) or whitespace != "compact"
        assert re.search(rb'\A\{\n  "name": ".*\n\}\Z', text, re.DOTALL) or whitespace != "indented"


def test_a_schema_may_be_recursive(grammars: GrammarCompiler) -> None:
    tree = {"type": "array", "items": {"$ref": "#"}}
    grammar = compiled(grammars, "json_schema", tree)
    assert isinstance(grammar, Automaton)
    state, stack = after_text(grammar, b"[[[],[")
    assert len(stack) == GAP_PLACES + 3
    assert after_text(grammar, b"[[[],[]]]") != (state, stack)
    assert after_text(grammar, b"]")[0] == -1


def test_a_value_ends_where_its_brackets_close(grammars: GrammarCompiler) -> None:
    grammar = compiled(grammars, "json_schema", {"type": "array", "items": {"type": "array"}, "maxItems": 1})
    assert isinstance(grammar, Automaton)
    follower = Follower(grammar)
    for byte in b"[[]":
        assert byte in follower.allowed()
        follower.take(byte)
    assert {token for token in follower.allowed() if token < 256} == {ord("]")}


@pytest.mark.parametrize("seed", range(8))
def test_llguidance_serves_grammars_that_are_too_large_for_tables(
    grammars: GrammarCompiler, seed: int
) -> None:
    schema = {"type": "string", "pattern": TOO_MANY_STATES}
    grammar = compiled(grammars, "json_schema", schema)
    assert isinstance(grammar, HostGrammar)
    jsonschema.validate(json.loads(random_output(grammar, seed)), schema)


def test_keywords_that_cant_be_enforced_are_left_out_where_that_is_allowed(
    grammars: GrammarCompiler,
) -> None:
    fields = {"a": {"format": "iban", "maxLength": 2}, "b": {"uniqueItems": True, "type": "array"}}
    schema = {"type": "object", "properties": fields, "required": ["a"]}
    grammar = compiled(grammars, "json_schema", schema, unenforced="allow")
    assert isinstance(grammar, Automaton)
    assert set(grammar.left_out) == {
        ("format", "#/properties/a/format"),
        ("uniqueItems", "#/properties/b/uniqueItems"),
    }
    assert grammar.machine.accepts(b'{"a":"xy","b":[1,1]}')
    assert not grammar.machine.accepts(b'{"a":"xyz"}')


def test_an_unknown_format_is_an_annotation_unless_everything_must_be_enforced(
    grammars: GrammarCompiler,
) -> None:
    fields = {"a": {"type": "string", "format": "path", "maxLength": 2}, "b": {"format": "uuid"}}
    schema = {"type": "object", "properties": fields, "required": ["a"]}
    grammar = compiled(grammars, "json_schema", schema, unenforced="annotations")
    assert isinstance(grammar, Automaton)
    assert grammar.left_out == (("format", "#/properties/a/format"),)
    assert grammar.machine.accepts(b'{"a":"xy"}')
    assert not any(map(grammar.machine.accepts, (b'{"a":"xyz"}', b'{"a":"x","b":"y"}')))
    refused = compiled(grammars, "json_schema", schema, unenforced="refuse")
    assert isinstance(refused, GrammarError) and "the format 'path' is not known" in str(refused)


@pytest.mark.parametrize("keyword", ["uniqueItems", "pattern"])
def test_other_unenforceable_keywords_are_refused_beside_an_annotation(
    grammars: GrammarCompiler, keyword: str
) -> None:
    said = {"uniqueItems": {"type": "array", "uniqueItems": True}, "pattern": {"pattern": r"(a)\1"}}[keyword]
    schema = {"properties": {"a": {"type": "string", "format": "path"}, "b": said}}
    refused = compiled(grammars, "json_schema", schema, unenforced="annotations")
    assert isinstance(refused, GrammarError) and f"{keyword!r} at #/properties/b" in str(refused)


WRONG: list[dict[str, object]] = [
    {"type": "strng"},
    {"$ref": "#/nope"},
    {"$ref": "#nope"},
    {"$ref": 5},
    {"pattern": "(a"},
    {"pattern": "[a"},
    {"pattern": "*"},
    {"pattern": 3},
    {"format": 3},
    {"patternProperties": {"a)": {}}},
    {"minLength": -1},
    {"maximum": "3"},
    {"multipleOf": 0},
    {"required": [1]},
    {"properties": [1]},
]
BESIDE: list[dict[str, object]] = [{}, {"uniqueItems": True}, {"contains": {"pattern": TOO_MANY_STATES}}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize("beside", BESIDE, ids=["", "unique", "large"])
def test_a_meaningless_keyword_is_never_left_out(
    grammars: GrammarCompiler, wrong: dict[str, object], beside: dict[str, object]
) -> None:
    schema = {"type": "array", "items": wrong, **beside}
    result = compiled(grammars, "json_schema", schema, unenforced="allow")
    assert isinstance(result, GrammarError)
    (keyword,) = wrong
    assert f"{keyword!r} at #/items/{keyword} is wrong" in str(result)


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "(?<=a)b"},
        {"pattern": r"\Aa"},
        {"pattern": r"(a)\1"},
        {"pattern": r"\p{Unheard_Of}"},
        {"$ref": "http://other/schema"},
        {"$ref": "http://other/schema#name"},
        {"format": "iban"},
    ],
    ids=str,
)
def test_meaningful_keywords_that_cant_be_enforced_are_left_out_and_listed(
    grammars: GrammarCompiler, schema: dict[str, str]
) -> None:
    (keyword,) = schema
    grammar = compiled(grammars, "json_schema", schema, unenforced="allow")
    assert isinstance(grammar, Automaton | HostGrammar)
    assert grammar.left_out == ((keyword, f"#/{keyword}"),)
    refused = compiled(grammars, "json_schema", schema)
    assert isinstance(refused, GrammarError) and '"unenforced": "allow"' in str(refused)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "uniqueItems": True}, "the items must have at most 9 possible values"),
        ({"$ref": "http://other/schema"}, "'http://other/schema' leads out of the schema"),
        ({"type": "string", "pattern": "(?<=a)b"}, "'(?<=a)b' has look-behind"),
        ({"type": "string", "pattern": r"^\e$"}, r"'^\e$' has \e, which ECMA-262 does not know: write \x1b"),
        ({"type": "string", "pattern": "^a", "minLength": 300}, "beside these constraints, automata count"),
        (
            {
                "type": "array",
                "items": {"type": "string", "pattern": TOO_MANY_STATES},
                "contains": {"const": 1},
            },
            "it is enforced by automata alone, and the schema is too large for an automaton (",
        ),
        (
            {"allOf": [{"type": "string", "pattern": TOO_MANY_STATES}, {"$ref": "http://other/schema"}]},
            "'http://other/schema' leads out of the schema",
        ),
    ],
    ids=str,
)
def test_a_refusal_gives_our_own_reason_and_not_a_librarys(
    grammars: GrammarCompiler, schema: dict[str, object], reason: str
) -> None:
    refused = compiled(grammars, "json_schema", schema)
    assert isinstance(refused, GrammarError)
    assert f" can't be enforced: {reason}" in str(refused)
    assert str(refused).endswith('. To leave it out, send "unenforced": "allow" in the request.')


def test_an_error_about_a_grammar_names_it_a_grammar(grammars: GrammarCompiler) -> None:
    refused = compiled(grammars, "grammar", "start: unknown")
    assert isinstance(refused, GrammarError)
    assert "the grammar can't be enforced" in str(refused) and "schema" not in str(refused)


def test_a_keyword_that_one_engine_enforces_is_not_left_out(grammars: GrammarCompiler) -> None:
    grammar = compiled(grammars, "json_schema", {"pattern": TOO_MANY_STATES}, unenforced="allow")
    assert isinstance(grammar, HostGrammar)
    assert grammar.left_out == ()


def test_llguidance_leaves_out_keywords_that_it_cant_enforce(grammars: GrammarCompiler) -> None:
    hard = {"pattern": TOO_MANY_STATES}
    schema = {"items": {"format": "iban"}, "type": "array", "contains": hard, "prefixItems": [hard]}
    grammar = compiled(grammars, "json_schema", schema, unenforced="allow")
    assert isinstance(grammar, HostGrammar)
    assert set(grammar.left_out) == {("format", "#/items/format"), ("contains", "#/contains")}


def test_properties_come_in_any_order_on_request(grammars: GrammarCompiler) -> None:
    grammar = compiled(grammars, "json_schema", {"properties": {"a": {}, "b": {}}}, property_order="any")
    assert isinstance(grammar, Automaton)
    assert grammar.machine.accepts(b'{"b":1,"a":2}')


@pytest.mark.parametrize("pattern", ["^a$", TOO_MANY_STATES])
def test_undeclared_properties_are_forbidden_on_request(grammars: GrammarCompiler, pattern: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    for additional, begins in (("declared", False), ("schema", True)):
        grammar = compiled(grammars, "json_schema", schema, additional_properties=additional)
        assert isinstance(grammar, Automaton if pattern == "^a$" else HostGrammar)
        follower = Follower(grammar) if isinstance(grammar, Automaton) else HostFollower(grammar)
        for byte in b'{"':
            follower.take(byte)
        assert ord("a") in follower.allowed()
        assert (ord("b") in follower.allowed()) == begins


def test_each_request_follows_its_own_copy(grammars: GrammarCompiler) -> None:
    grammar = compiled(grammars, "json_schema", {"pattern": TOO_MANY_STATES})
    assert isinstance(grammar, HostGrammar)
    first, second = grammar.matcher(), grammar.matcher()
    assert first.consume(ord("1")) is None
    assert second.consume(ord("2")) is None


def test_a_token_outside_of_the_grammar_is_an_error_that_says_so(grammars: GrammarCompiler) -> None:
    grammar = compiled(grammars, "json_schema", {"pattern": TOO_MANY_STATES})
    assert isinstance(grammar, HostGrammar)
    error = grammar.matcher().consume(ord("x"))
    assert isinstance(error, CompilerError) and "left its grammar" in str(error)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"items": {"type": "array", "uniqueItems": True}}, "'uniqueItems' at #/items/uniqueItems"),
        ({"properties": {"d": {"type": "string", "format": "shoe"}}}, "'format' at #/properties/d/format"),
        ({"anyOf": [{"type": "strin"}]}, "'type' at #/anyOf/0/type"),
        ({"properties": {"x": {"$ref": "#/nowhere"}}}, "'$ref' at #/properties/x/$ref"),
        ({"type": "string", "pattern": "(?<=a)b"}, "'pattern' at #/pattern"),
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


def test_a_schema_that_allows_nothing_is_refused_as_a_wrong_schema(grammars: GrammarCompiler) -> None:
    result = compiled(grammars, "json_schema", {"type": "integer", "minimum": 5, "maximum": 3})
    assert isinstance(result, GrammarError)
    assert "allows no value" in str(result) and "20 digits" not in str(result)


def test_llguidance_is_not_awaited_beyond_its_time_limit(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 1e-9)
    result = compiled(grammars, "json_schema", {"enum": [TOO_MANY_LETTERS, *range(3000)]})
    assert isinstance(result, GrammarError)
    assert "takes more than" in str(result)


@pytest.mark.parametrize(
    ("pattern", "kind"), [("^a$", Automaton), (TOO_MANY_STATES, HostGrammar)], ids=["device", "host"]
)
def test_a_schema_cant_loosen_its_constraints_with_options(
    grammars: GrammarCompiler, pattern: str, kind: type[Automaton | HostGrammar]
) -> None:
    schema = {"prefixItems": [{"const": [1, 2]}, {"pattern": pattern, "type": "string"}], "minItems": 2}
    options = {"x-guidance": {"whitespace_flexible": True, "lenient": True}}
    schema_with_options = {"type": "array", "items": False, **schema, **options}
    grammar = compiled(grammars, "json_schema", schema_with_options, whitespace="compact")
    assert isinstance(grammar, kind)
    for seed in range(5):
        text = random_output(grammar, seed)
        assert is_compact(text)
        jsonschema.validate(json.loads(text), schema)


def test_white_space_is_bounded_where_llguidance_follows_the_reply(grammars: GrammarCompiler) -> None:
    schema = {"type": "array", "items": {"type": "string", "pattern": TOO_MANY_STATES}, "minItems": 2}
    grammar = compiled(grammars, "json_schema", schema)
    assert isinstance(grammar, HostGrammar)
    texts = [random_output(grammar, seed) for seed in range(6)]
    assert not all(map(is_compact, texts))
    for text in texts:
        jsonschema.validate(json.loads(text), schema)
        assert all(re.fullmatch(rb" |\n( {0,64}|\t{0,16})", gap) for gap in re.findall(rb"\s+", text))


def test_any_object_is_an_object(grammars: GrammarCompiler) -> None:
    grammar = compiled(grammars, "json_object", "")
    assert isinstance(grammar, Automaton)
    assert all(spelled([token]).startswith(b"{") for token in Follower(grammar).allowed())


def test_a_larger_schema_counts_for_more_memory(grammars: GrammarCompiler) -> None:
    small, large = (
        compiled(grammars, "json_schema", {"enum": [TOO_MANY_LETTERS, *range(n)]}) for n in (2, 2000)
    )
    assert isinstance(small, HostGrammar) and isinstance(large, HostGrammar)
    assert 0 < small.host_nbytes < large.host_nbytes


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "number", "minimum": 1e20}, "numbers have up to 20 digits"),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 1}},
                "required": ["a"],
            },
            "the schema allows no value: at #/properties/a, minimum is 5, above maximum, which is 1",
        ),
        (
            {"type": "string", "minLength": 3, "maxLength": 2},
            "the schema allows no value: at #, minLength is 3, above maxLength, which is 2",
        ),
        ({"type": "string", "pattern": r"(a)\1\d"}, r"'(a)\1\d' has a back-reference"),
        ({"type": "string", "pattern": "\\u{110000}"}, "'pattern'"),
        (
            {"type": "string", "format": "date", "pattern": "^2026-02-29"},
            "the schema allows no value, or none",
        ),
        ({"type": "string", "format": "time", "enum": ["22:59:60Z"]}, "allows no value, or none"),
        ({"$id": "http://[", "type": "integer"}, "'$id' at #/$id is wrong: it is not a URI"),
        ({"items": {"$ref": "http://["}}, "'$ref' at #/items/$ref is wrong: 'http://[' is no URI"),
    ],
    ids=[
        "beyond spelled numbers",
        "crossed bounds of a property",
        "crossed lengths",
        "a backslash",
        "no code point",
        "no such day",
        "no such second",
        "no address",
        "a reference to no address",
    ],
)
def test_a_schema_that_no_engine_accepts_is_refused_and_others_are_served(
    grammars: GrammarCompiler, schema: object, said: str
) -> None:
    result = compiled(grammars, "json_schema", schema)
    assert isinstance(result, GrammarError) and said in str(result)
    assert isinstance(compiled(grammars, "json_schema", {"type": "integer"}), Automaton)


def test_a_string_of_too_many_letters_for_a_table_is_left_to_llguidance(grammars: GrammarCompiler) -> None:
    assert isinstance(compiled(grammars, "json_schema", {"enum": [TOO_MANY_LETTERS]}), HostGrammar)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    ],
)
def test_a_schema_whose_values_never_end_is_refused(grammars: GrammarCompiler, schema: object) -> None:
    answer = compiled(grammars, "json_schema", schema)
    assert isinstance(answer, GrammarError)
    assert re.search("none that ends|refers to itself", str(answer))
