"""Turns the values of fields that constrain a reply into one `GrammarSpec`, in every wire format."""

from __future__ import annotations

import json
import re
import re._constants as op
import re._parser as parser
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw

from ...runtime.errors import RequestError
from ...runtime.messages import GrammarSpec, Whitespace
from .conversation import MAX_SCHEMA_DEPTH
from .fields import ReplyFields
from .tools.schema_keywords import misspelt_keywords
from .type_errors import json_mistake
from .validation import invalid_field

_ANY_OBJECT = '{"type":"object"}'
_WHITESPACE = ["", " ", "\n", "\n  "]
_NEEDED_FOR: dict[Whitespace, list[str]] = {"model": _WHITESPACE, "spaced": ["", " "], "compact": [""]}
"""The strings of white space that each rule may write."""
_LONGEST = max(map(len, _WHITESPACE))
_MAX_WAYS = 10_000
_REPEATS = {op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT}
_CHARACTERS = {op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN}


def _number(text: str) -> float | int:
    """Reads a JSON number. 1.0 becomes 1, because they are the same number in JSON."""
    value = float(text)
    return int(value) if value.is_integer() else value


_schemas = msgspec.json.Decoder(float_hook=_number)


def regex_spec(pattern: str | None, param: str) -> GrammarSpec | None:
    return None if pattern is None else GrammarSpec("regex", pattern, param)


def grammar_spec(text: str | None, param: str) -> GrammarSpec | None:
    """A context-free grammar, Lark or GBNF."""
    return None if text is None else GrammarSpec("grammar", text, param)


def choice_spec(options: list[str] | None, param: str) -> GrammarSpec | None:
    if options is None:
        return None
    if not options or "" in options:
        raise invalid_field(param, "must have at least one string, none of them empty")
    return GrammarSpec("choice", msgspec.json.encode(options).decode(), param)


def text_specs(request: ReplyFields) -> list[GrammarSpec | None]:
    """The specs of the fields that every API has, for `one_spec`."""
    return [
        regex_spec(request.regex, "regex"),
        choice_spec(request.choice, "choice"),
        grammar_spec(request.grammar, "grammar"),
    ]


def object_spec(is_wanted: bool | None, param: str) -> GrammarSpec | None:
    """Any JSON object."""
    return GrammarSpec("json_object", "", param) if is_wanted else None


def schema_spec(schema: Raw, param: str) -> GrammarSpec | None:
    """A schema as an object or as a string that holds JSON; None for null."""
    if is_null(schema):
        return None
    try:
        if bytes(schema).lstrip().startswith(b'"'):
            schema = Raw(msgspec.json.decode(schema, type=str).encode())
        decoded = msgspec.json.decode(schema)
    except RecursionError:
        raise invalid_field(param, f"is nested more than {MAX_SCHEMA_DEPTH} levels deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = f"{param} is not valid JSON: {json_mistake(bytes(schema), error)}"
        raise RequestError(problem, param=param, code="invalid_value") from None
    if not isinstance(decoded, dict | bool):
        raise invalid_field(param, "must be a JSON schema: an object", "invalid_type")
    misspelt = misspelt_keywords(decoded, param)
    return GrammarSpec("json_schema", bytes(schema).decode(), param, misspelt=misspelt)


def spaced_as(spec: GrammarSpec | None, pattern: str | None, param: str) -> GrammarSpec | None:
    """The grammar with the white space that vLLM's pattern allows between the tokens of JSON: as the model
    chooses if the pattern allows line breaks, else one space or none."""
    if spec is None or pattern is None:
        return spec
    try:
        is_simple = _ways(parser.parse(pattern)) <= _MAX_WAYS
        allowed = [text for text in _WHITESPACE if is_simple and re.fullmatch(pattern, text)]
    except (re.error, RecursionError, OverflowError) as error:
        raise RequestError(f"{param} is not a regex: {error}", param=param, code="invalid_value") from None
    if not is_simple:
        raise invalid_field(
            param,
            r"repeats groups too often: repeat a class of characters, as [ \n\t]* does",
            "unsupported_value",
        )
    for whitespace, needed in _NEEDED_FOR.items():
        if allowed[: len(needed)] == needed:
            return msgspec.structs.replace(spec, whitespace=whitespace)
    raise invalid_field(
        param,
        f"is {pattern!r}, which allows no JSON without white space. Let it match the empty text, as "
        r"[ \n\t]* does, or set whitespace to model, compact, spaced or indented",
        "unsupported_value",
    )


def _ways(items: Any) -> int:
    """An upper bound on the number of ways in which Python may try to match a text with a parsed regex. It
    tries them one by one, so even a short regex could keep it busy for years."""
    ways = 1
    for kind, value in items:
        if kind in _REPEATS:
            least, most, inner = value
            if len(inner) == 1 and inner[0][0] in _CHARACTERS:
                ways *= 1 + min(int(most), _LONGEST)
            else:  # Python stops repeating an empty match after the minimum
                ways *= (1 + _ways(inner)) ** min(int(most), max(int(least), _LONGEST + 1), _MAX_WAYS)
        elif kind is op.BRANCH:
            ways *= sum(map(_ways, value[1]))
        elif kind is op.GROUPREF_EXISTS:
            ways *= sum(_ways(branch) for branch in value[1:] if branch is not None)
        elif kind in (op.SUBPATTERN, op.ASSERT, op.ASSERT_NOT):
            ways *= _ways(value[-1])
        elif kind is op.ATOMIC_GROUP:
            ways *= _ways(value)
        ways = min(ways, _MAX_WAYS + 1)
    return ways


def is_null(value: Raw) -> bool:
    return bytes(value).strip() == b"null"


def one_spec(found: Iterable[GrammarSpec | None]) -> GrammarSpec | None:
    """The constraint on the reply, or None. Raises `RequestError` if two fields ask for different ones."""
    specs = [spec for spec in found if spec is not None]
    if len(specs) > 1 and len(set(map(_meaning, specs))) > 1:
        names = " and ".join(spec.param for spec in specs)
        raise RequestError(
            f"{names} can't be used together: give only one, or the same value in each.",
            param=specs[1].param,
            code="invalid_value",
        )
    return specs[0] if specs else None


def _meaning(spec: GrammarSpec) -> tuple[str, bytes]:
    """A key that is equal for specs whose texts show that they allow the same replies: JSON is compared by
    value, a choice as a set of texts, all else letter by letter."""
    match spec.kind:
        case "json_object":
            return "json_schema", _ANY_OBJECT.encode()
        case "json_schema" | "structural_tag":
            value = _schemas.decode(spec.text)
            return spec.kind, json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        case "choice":
            texts: list[str] = msgspec.json.decode(spec.text, type=list[str])
            return "choice", msgspec.json.encode(sorted(set(texts)))
    return spec.kind, spec.text.encode()
