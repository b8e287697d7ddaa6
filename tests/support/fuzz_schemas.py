"""Random JSON schemas that use every keyword, some with values that make no sense."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Make = Callable[[random.Random, int], Any]
NAMES = ("a", "b", "name", "größe", "x y", "", "$ref", "__proto__", 'quote"d', "日本")
PATTERNS = (
    "^[a-z]{1,4}$",
    "a|b",
    "^\\d+$",
    "[^\\s]",
    "(?:ab)*",
    "^$",
    "\\p{L}",
    "(?=x)",
    "x{0,300}",
    "[",
    "^x_",
)
FORMATS = ("date", "date-time", "email", "uuid", "ipv4", "uri", "duration", "regex", "path", "binary", "nope")
TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
WRONG: tuple[Any, ...] = (None, True, -1, 1.5, "", "text", [], {}, [[]], [None], {"a": 1}, 10**30, "1e400")
_WRONG_SHARE = 0.06


def schema(rng: random.Random, depth: int = 3) -> Any:
    """A schema: true, false or an object with up to five keywords."""
    if rng.random() < 0.03:
        return rng.random() < 0.7
    found: dict[str, Any] = {}
    if rng.random() < 0.7:
        kind = rng.choice(TYPES)
        found["type"] = kind if rng.random() < 0.9 else rng.sample(TYPES, 2)
    names = rng.sample(sorted(_KEYWORDS), rng.randint(0, 4))
    if found.get("type") == "object":
        names.append("properties")
    for name in names:
        is_wrong = rng.random() < _WRONG_SHARE
        found[name] = rng.choice(WRONG) if is_wrong else _KEYWORDS[name](rng, depth - 1)
    return found


def object_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema of objects, as tools need it."""
    found = schema(rng, depth)
    return {**(found if isinstance(found, dict) else {}), "type": "object"}


def value(rng: random.Random, depth: int = 2) -> Any:
    """Any JSON value."""
    plain: list[Any] = [None, True, False, 0, -7, 2**53, 0.5, 1e300, "", "text", "é\u2028\U0001f600", "\x00"]
    if depth <= 0 or rng.random() < 0.6:
        return rng.choice(plain)
    if rng.random() < 0.5:
        return [value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(NAMES): value(rng, depth - 1) for _ in range(rng.randint(0, 3))}


def _sub(rng: random.Random, depth: int) -> Any:
    return schema(rng, depth) if depth > 0 else {"type": rng.choice(TYPES[:5])}


def _several(rng: random.Random, depth: int) -> list[Any]:
    return [_sub(rng, depth) for _ in range(rng.randint(1, 3))]


def _named(rng: random.Random, depth: int) -> dict[str, Any]:
    return {name: _sub(rng, depth) for name in rng.sample(NAMES, rng.randint(1, 3))}


def _patterned(rng: random.Random, depth: int) -> dict[str, Any]:
    return {rng.choice(PATTERNS): _sub(rng, depth)}


def _count(rng: random.Random, depth: int) -> int:
    return rng.choice((0, 1, 2, 3, 8, 40, 1000, 100_000))


def _number(rng: random.Random, depth: int) -> float:
    return rng.choice((0, 1, -1, 7, 100, 0.5, -3.25, 1e10, 10**18, -(10**20), 1e-7))


def _names(rng: random.Random, depth: int) -> list[str]:
    return rng.sample(NAMES, rng.randint(0, 3))


def _reference(rng: random.Random, depth: int) -> str:
    targets = (
        "#",
        "#/$defs/a",
        "#/$defs/b",
        "#/properties/a",
        "#/nowhere",
        "http://x/y",
        "#a",
        "#/$defs/a~1",
    )
    return rng.choice(targets)


def _one_of(*values: Any) -> Make:
    return lambda rng, depth: rng.choice(values)


_KEYWORDS: dict[str, Make] = {
    "properties": _named,
    "patternProperties": _patterned,
    "additionalProperties": _sub,
    "unevaluatedProperties": _sub,
    "propertyNames": _sub,
    "required": _names,
    "minProperties": _count,
    "maxProperties": _count,
    "dependentRequired": lambda rng, depth: {rng.choice(NAMES): _names(rng, depth)},
    "dependentSchemas": _named,
    "items": _sub,
    "prefixItems": _several,
    "unevaluatedItems": _sub,
    "additionalItems": _sub,
    "contains": _sub,
    "minContains": _count,
    "maxContains": _count,
    "minItems": _count,
    "maxItems": _count,
    "uniqueItems": _one_of(True, False),
    "minLength": _count,
    "maxLength": _count,
    "pattern": _one_of(*PATTERNS),
    "format": _one_of(*FORMATS),
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "multipleOf": _number,
    "enum": lambda rng, depth: [value(rng) for _ in range(rng.randint(0, 4))],
    "const": lambda rng, depth: value(rng),
    "anyOf": _several,
    "oneOf": _several,
    "allOf": _several,
    "not": _sub,
    "if": _sub,
    "then": _sub,
    "else": _sub,
    "$ref": _reference,
    "$dynamicRef": _reference,
    "$defs": lambda rng, depth: {"a": _sub(rng, depth), "b": _sub(rng, depth)},
    "definitions": _named,
    "$id": _one_of("http://x/y", "", "#"),
    "$schema": _one_of(
        "https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-04/schema#"
    ),
    "$anchor": _one_of("a", "b"),
    "$comment": _one_of("a comment"),
    "title": _one_of("A title"),
    "default": lambda rng, depth: value(rng),
    "contentMediaType": _one_of("application/json"),
    "contentEncoding": _one_of("base64"),
    "readOnly": _one_of(True),
    "x-unknown": lambda rng, depth: value(rng),
}
