"""The texts of strings that match a schema, as models write them without quotes and escapes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import GrammarError
from ..regex.rust import convert_to_rust

MAX_LENGTH = 256  # `minLength` and `maxLength` above it are not enforced: each code point takes states
_ANNOTATIONS = {
    "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description", "example",
    "examples", "readOnly", "title", "writeOnly",
}  # fmt: skip


class PlainText(NamedTuple):
    """One of the `texts`, or else a text that matches `regex`, or else any text. `left_out`: the keywords
    that are not enforced."""

    texts: Sequence[str] | None = None
    regex: str | None = None
    left_out: tuple[str, ...] = ()


def read_plain_text(schema: Any) -> PlainText:
    """The texts that a valid schema allows. A value that is no string is written as JSON. Raises
    `GrammarError` if no length is allowed."""
    if not isinstance(schema, dict):
        return PlainText()
    said = {name: value for name, value in schema.items() if name not in _ANNOTATIONS and name != "type"}
    if "enum" in said or "const" in said:
        values = [said.pop("const")] if "const" in said else said.pop("enum")
        texts = [each if isinstance(each, str) else json.dumps(each) for each in values]
        return PlainText(texts, left_out=tuple(said))
    for union in ("anyOf", "oneOf"):
        if union in said and all(_says_only_type(branch) for branch in said[union]):
            del said[union]
    regex = _take_pattern(said) or _take_lengths(said)
    return PlainText(regex=regex, left_out=tuple(said))


def _says_only_type(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.keys() <= {"type", *_ANNOTATIONS}


def _take_pattern(said: dict[str, Any]) -> str | None:
    """The regex of the pattern, which it removes; None without a pattern, or if it has no regex."""
    try:
        regex = convert_to_rust(said["pattern"])[1:-1] if "pattern" in said else None
    except GrammarError:
        return None
    if regex is not None:
        del said["pattern"]
    return regex


def _take_lengths(said: dict[str, Any]) -> str | None:
    min_length, max_length = said.get("minLength", 0), said.get("maxLength")
    if max_length is not None and min_length > max_length:
        raise GrammarError(
            f"minLength is {int(min_length)}, but maxLength is {int(max_length)}: no text has both"
        )
    if not (min_length or max_length is not None) or max(min_length, max_length or 0) > MAX_LENGTH:
        return None
    for name in said.keys() & {"minLength", "maxLength"}:
        del said[name]
    return f"(?s:.{{{int(min_length)},{'' if max_length is None else int(max_length)}}})"
