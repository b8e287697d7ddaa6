"""Ranges and words of a request's fields, declared in their types.

The checks of requests read them, and so does /openapi.json. msgspec itself does not check them, because its
errors would not name the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from msgspec import Meta, Struct


class Range(NamedTuple):
    """The range of a number. `high` is None for no limit. `above_low`: `low` itself is excluded."""

    low: float
    high: float | None
    above_low: bool


def within(low: float, high: float | None = None, *, above_low: bool = False) -> Meta:
    """The range of a number."""
    lowest: dict[str, object] = {"exclusiveMinimum" if above_low else "minimum": low}
    return Meta(extra_json_schema=lowest if high is None else {**lowest, "maximum": high})


def one_of(words: Sequence[str]) -> Meta:
    """The words that a text may be."""
    return Meta(extra_json_schema={"enum": list(words)})


@cache
def find_ranges(kind: type[Struct]) -> dict[str, Range]:
    """The ranges of a type's own fields by name."""
    found = {}
    for name, schema in _declared(kind):
        if "minimum" in schema:
            found[name] = Range(schema["minimum"], schema.get("maximum"), False)
        elif "exclusiveMinimum" in schema:
            found[name] = Range(schema["exclusiveMinimum"], schema.get("maximum"), True)
    return found


@cache
def find_words(kind: type[Struct]) -> dict[str, list[str]]:
    """The words that a type's own fields may be, by name."""
    return {name: schema["enum"] for name, schema in _declared(kind) if "enum" in schema}


def _declared(kind: type[Struct]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for part in (hint, *get_args(hint)):
            for note in getattr(part, "__metadata__", ()):
                if isinstance(note, Meta) and note.extra_json_schema:
                    yield name, note.extra_json_schema
