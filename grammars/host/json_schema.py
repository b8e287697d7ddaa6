"""Prepares JSON schemas for llguidance, and finds the keyword and path behind its errors."""

from __future__ import annotations

import json
import re

from ...runtime.grammar_spec import FIXED, JsonSpacing
from ..errors import GrammarError, NotCoveredError, WrongKeywordError
from ..regex.ecma import MalformedError, RegexError
from ..regex.rust import convert_to_rust
from ..schema.read.json_text import DATA, NAMED, Json, walk_objects

_BOUNDED = r" |\n( {0,64}|\t{0,16})"  # regex of the white space between two tokens
MAX_REFERENCES = 1000  # maximal length of a chain of references; each takes some of llguidance's stack

_KEYWORDS_IN_ERRORS = (
    (re.compile(r'Unimplemented keys: \["([^"]+)"'), None),
    (re.compile(r"Unknown format: (?P<value>.*)"), "format"),
    (re.compile(r"Invalid type: (?P<value>.*)"), "type"),
    (re.compile(r"oneOf constraints"), "oneOf"),
    (re.compile(r"[Pp]atternProperty"), "patternProperties"),
    (re.compile(r"regex parse error"), "pattern"),
    (re.compile(r"Pointer '(?P<value>[^']*)'"), "$ref"),
    (re.compile(r"Resource '(?:json-schema:///)?(?P<value>[^']*)'"), "$ref"),
    (re.compile(r"Invalid URI reference '(?P<value>[^']*)'"), "$id"),
    (re.compile(r"Invalid URI reference '(?P<value>[^']*)'"), "$ref"),
)
_MISTAKES = {
    "$id": "it is not a URI",
    "type": "there is no such type",
    "$ref": "it leads nowhere",
}


def with_options(schema: Json, whitespace: JsonSpacing) -> dict[str, Json]:
    """The schema with our options for llguidance; the client's are dropped."""
    if schema is False:
        raise GrammarError("the schema `false` allows no value")
    read = _with_rust_patterns(schema, ())
    fields = dict(read) if isinstance(read, dict) else {}
    fields["x-guidance"] = {**_describe_spacing(whitespace), "coerce_one_of": False, "lenient": False}
    return fields


def _describe_spacing(whitespace: JsonSpacing) -> dict[str, Json]:
    separators = FIXED.get(whitespace) if isinstance(whitespace, str) else whitespace
    if separators is None:  # because llguidance can neither bind later white space to earlier nor require it
        return {"whitespace_flexible": True, "whitespace_pattern": _BOUNDED}
    item, key = separators
    return {"whitespace_flexible": False, "item_separator": item, "key_separator": key}


def _with_rust_patterns(schema: Json, path: tuple[str, ...]) -> Json:
    """A copy of a schema, or of a list of schemas, whose patterns llguidance reads as ECMA-262 does."""
    if isinstance(schema, list):
        return [_with_rust_patterns(part, (*path, str(place))) for place, part in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    copy: dict[str, Json] = {}
    for keyword, said in schema.items():
        inside = (*path, keyword)
        if keyword == "pattern" and isinstance(said, str):
            copy[keyword] = _convert_pattern(said, path, keyword)
        elif keyword == "patternProperties" and isinstance(said, dict):
            copy[keyword] = rewritten = {
                _convert_pattern(name, path, keyword): _with_rust_patterns(part, (*inside, name))
                for name, part in said.items()
            }
            if len(rewritten) < len(said):
                raise NotCoveredError(keyword, _pointer(path, keyword), "two of its patterns are the same")
        elif keyword in NAMED and isinstance(said, dict):
            copy[keyword] = {name: _with_rust_patterns(part, (*inside, name)) for name, part in said.items()}
        else:
            is_schema = keyword not in DATA and not keyword.startswith("x-")
            copy[keyword] = _with_rust_patterns(said, inside) if is_schema else said
    return copy


def _convert_pattern(pattern: str, path: tuple[str, ...], keyword: str) -> str:
    try:
        return convert_to_rust(pattern)
    except RegexError as error:
        kind = WrongKeywordError if isinstance(error, MalformedError) else NotCoveredError
        raise kind(keyword, _pointer(path, keyword), str(error)) from None


def explain(error: str, what: str, schema: Json) -> GrammarError:
    """Turns llguidance's message into an error with the path of the schema's keyword at fault."""
    found = _find_culprit(error, schema)
    if found is None:
        return GrammarError(f"the {what} can't be enforced: {error}")
    path, keyword, value = found
    if _is_meaningless(keyword, value):
        return WrongKeywordError(keyword, _pointer(path, keyword), _MISTAKES[keyword])
    reason = "it leads out of the schema" if keyword == "$ref" else "it is enforced by automata alone"
    return NotCoveredError(keyword, _pointer(path, keyword), reason)


def _is_meaningless(keyword: str, value: Json) -> bool:
    """Whether a value that llguidance refuses is wrong in any engine."""
    return keyword in ("type", "$id") or (keyword == "$ref" and str(value).startswith("#"))


def remove_culprit(error: NotCoveredError, schema: Json) -> None:
    """Removes the keyword of an error that `explain` made."""
    for path, fields in walk_objects(schema):
        if error.keyword in fields and _pointer(path, error.keyword) == error.path:
            del fields[error.keyword]
            return


def _pointer(path: tuple[str, ...], keyword: str) -> str:
    return "#" + "".join(f"/{part}" for part in (*path, keyword))


def _find_culprit(error: str, schema: Json) -> tuple[tuple[str, ...], str, Json] | None:
    """Finds the keyword at fault: the path of its object, the keyword, and its value."""
    for pattern, keyword in _KEYWORDS_IN_ERRORS:
        match = pattern.search(error)
        if match is None:
            continue
        name = keyword or match.group(1)
        value = match.groupdict().get("value")
        for path, fields in walk_objects(schema):
            if name in fields and (value is None or value in json.dumps(fields[name], ensure_ascii=False)):
                return path, name, fields[name]
    return None


def check_references(schema: Json) -> None:
    """Raises GrammarError if a chain of references could overflow llguidance's stack.

    A cycle of references counts once.
    """
    found: dict[str, list[str]] = {}  # the references inside each target of a reference
    pending = ["#"]
    while pending:
        pointer = pending.pop()
        if pointer not in found:
            part = find_target(schema, pointer)
            found[pointer] = [
                ref for _, fields in walk_objects(part) if isinstance(ref := fields.get("$ref"), str)
            ]
            pending += found[pointer]
    if _measure_longest(found) > MAX_REFERENCES:
        raise GrammarError(
            f"the schema's references ($ref) follow each other more than {MAX_REFERENCES} times"
        )


def find_target(schema: Json, pointer: str) -> Json:
    """The target of a local pointer; None for other references."""
    if pointer == "#":
        return schema
    if not pointer.startswith("#/"):
        return None
    part = schema
    for step in pointer[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict):
            part = part.get(name)
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            return None
    return part


def _measure_longest(found: dict[str, list[str]]) -> int:
    """The length of the longest chain of references from the whole schema; a cycle counts once."""
    lengths: dict[str, int] = {}
    above: set[str] = set()
    pending = ["#"]
    while pending:
        pointer = pending[-1]
        if pointer in lengths:
            pending.pop()
        elif pointer in above:
            lengths[pointer] = 1 + max((lengths.get(ref, 0) for ref in found[pointer]), default=0)
            above.remove(pointer)
            pending.pop()
        else:
            above.add(pointer)
            pending += [ref for ref in found[pointer] if ref not in lengths and ref not in above]
    return lengths["#"]
