"""llguidance finds patterns of schemas where JavaScript finds them."""

from __future__ import annotations

import json
from itertools import product

import pytest
from arbora.grammars.errors import NotCoveredError, WrongKeywordError
from arbora.grammars.host.json_schema import with_options
from arbora.grammars.regex.ecma import RegexError
from arbora.grammars.regex.rust import convert_to_rust
from javascript_regexes import JavaScript
from llguidance_bytes import Peer

TEXTS = ["".join(letters) for length in range(3) for letters in product("ab1-]{},é\n", repeat=length)]
TEXTS += ["a{,3}", "aaa", "\u0661", "😀", "\u2028", "\u00a0", "abab", "babc"]
JAVASCRIPT = JavaScript()


@pytest.mark.parametrize(
    "pattern",
    [
        "a", "^a", "b$", "^ab$", "^a|b$", "^(a|b)$", "(^a|b$)", "a|^b|1$", "^a{,3}$", "^[]a]$", "^[^]$",
        "[^a]b", r"^\d$", r"^\s$", r"^\w+$", r"^\W$", "^.$", r"^\ud83d\ude00$", r"^\p{L}$",
        "^(?:ab){1,2}?$", "(?i:^A)", "",
    ],
)  # fmt: skip
def test_a_pattern_in_rust_is_found_where_javascript_finds_it(pattern: str) -> None:
    schema = with_options({"type": "string", "pattern": pattern}, (",", ":"))
    read = JAVASCRIPT.found(pattern, TEXTS)
    assert read is not None
    peer = Peer(schema)
    texts = [json.dumps(text, ensure_ascii=False) for text in TEXTS]
    assert [peer.accepts(text.encode()) for text in texts] == read[1]


@pytest.mark.parametrize(
    ("pattern", "named"),
    [("a(?=b)", "look-ahead"), ("a^b", "a ^ between other parts"), ("(a$|b)c", "a $ between other parts")],
)
def test_what_rust_lacks_is_refused_by_name(pattern: str, named: str) -> None:
    with pytest.raises(RegexError, match="which only automata follow") as refused:
        convert_to_rust(pattern)
    assert named in str(refused.value)


def test_patterns_are_rewritten_in_subschemas_and_nowhere_else() -> None:
    text = {"pattern": "^[]a]$"}
    schema = {
        "properties": {
            "pattern": text,
            "const": text,
            "properties": {"type": "object", "properties": {"b": text}},
        },
        "patternProperties": {"^[^]$": text},
        "allOf": [text],
        "enum": [text],
        "default": text,
        "x-form": {"pattern": "("},
    }
    written = with_options(schema, (",", ":"))  # type: ignore[arg-type]
    rewritten = {"pattern": convert_to_rust("^[]a]$")}
    assert written["enum"] == [text] and written["default"] == text and written["allOf"] == [rewritten]
    assert written["x-form"] == {"pattern": "("}
    assert written["properties"] == {
        "pattern": rewritten,
        "const": rewritten,
        "properties": {"type": "object", "properties": {"b": rewritten}},
    }
    assert written["patternProperties"] == {convert_to_rust("^[^]$"): rewritten}


@pytest.mark.parametrize(
    ("schema", "kind", "path"),
    [
        ({"items": {"pattern": r"\Aa"}}, NotCoveredError, "#/items/pattern"),
        ({"patternProperties": {"(": {}}}, WrongKeywordError, "#/patternProperties"),
    ],
)
def test_a_pattern_that_llguidance_would_read_otherwise_is_refused_with_its_path(
    schema: dict[str, object], kind: type[NotCoveredError], path: str
) -> None:
    with pytest.raises(kind) as refused:
        with_options(schema, (",", ":"))  # type: ignore[arg-type]
    assert refused.value.path == path
