"""Reads a schema's text as JSON."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TypeAlias

from ...errors import GrammarError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
MAX_DEPTH = 200
DATA = frozenset(("const", "default", "enum", "example", "examples"))
"""keywords whose values contain no schemas"""
NAMED = frozenset(
    (
        *("$defs", "definitions", "dependencies", "dependentRequired", "dependentSchemas"),
        *("patternProperties", "properties"),
    )
)
"""keywords of objects whose keys are names, not keywords"""
_TOO_DEEP = f"the schema is nested more than {MAX_DEPTH} levels deep"


class WrittenDecimal(Decimal):
    """A number with a point or an exponent. `str` gives the text that was parsed."""

    def __new__(cls, text: str) -> WrittenDecimal:
        number = super().__new__(cls, text)
        number._text = text
        return number

    _text: str

    def __str__(self) -> str:
        return self._text


def parse_schema(text: str, parse_float: Callable[[str], float | Decimal] = float) -> Json:
    """Parses a schema. Raises GrammarError if `text` isn't a JSON object or a boolean, or is nested too
    deep."""
    try:
        schema: Json = json.loads(text, parse_float=parse_float)
    except ValueError as error:
        raise GrammarError(f"the schema is not valid JSON: {error}") from None
    except RecursionError:
        raise GrammarError(_TOO_DEEP) from None
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"a JSON schema is an object or a boolean, not {json.dumps(schema)[:80]}")
    if _is_too_deep(schema):
        raise GrammarError(_TOO_DEEP)
    return schema


def _is_too_deep(schema: Json) -> bool:
    level: list[dict[str, Json] | list[Json]] = [schema] if isinstance(schema, dict) else []
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return False
        inner = [child for each in level for child in (each.values() if isinstance(each, dict) else each)]
        level = [child for child in inner if isinstance(child, dict | list)]
    return any(True for each in level for _ in walk_objects(each))


def walk_objects(schema: Json) -> Iterator[tuple[tuple[str, ...], dict[str, Json]]]:
    """Every object in the schema with its path, outer ones first. It does not recurse."""
    pending: deque[tuple[tuple[str, ...], Json]] = deque([((), schema)])
    while pending:
        path, value = pending.popleft()
        if isinstance(value, dict):
            yield path, value
            pending += [((*path, key), child) for key, child in value.items()]
        elif isinstance(value, list):
            pending += [((*path, str(position)), child) for position, child in enumerate(value)]


def list_texts(values: Json) -> list[str]:
    """The texts in a list; empty for any other value."""
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
