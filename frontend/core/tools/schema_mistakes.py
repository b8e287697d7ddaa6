"""Finds values that a JSON schema's keywords can't have, in time linear in the schema's size.

jsonschema checks a schema against its meta-schema, which takes 0.2 ms for each subschema and recurses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

_TYPES = frozenset(("null", "boolean", "number", "integer", "string", "object", "array"))
_SCHEMAS = frozenset(
    (
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    )
)
_SCHEMA_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_SCHEMA_MAPS = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
_LATEST = "2020-12"
_BOUNDS = {"exclusiveMaximum": "maximum", "exclusiveMinimum": "minimum"}
"""Keywords that draft 4 allows only beside another one, and that are true or false there."""


class Mistake(NamedTuple):
    """A value that its keyword can't have. `place` is a JSON pointer."""

    place: str
    value: object


def find_mistake(schema: Any) -> Mistake | None:
    """A mistake in the schema, or None. References are not followed.

    Drafts before 2020-12 also allow lists of `items` and have `additionalItems`. In draft 4 exclusive bounds
    are true or false, a list of names or values must not be empty, and `id` is a keyword.
    """
    named = schema.get("$schema") if isinstance(schema, dict) else None
    is_older = isinstance(named, str) and _LATEST not in named
    is_draft4 = isinstance(named, str) and "draft-04" in named
    values = _VALUES_IN_DRAFT_4 if is_draft4 else _VALUES
    pending = [("", schema)]
    while pending:
        place, value = pending.pop()
        if isinstance(value, bool):
            continue
        if not isinstance(value, dict):
            return Mistake(place, value)
        inner: list[tuple[str, Any]] = []
        for name, said in value.items():
            is_schema = name in _SCHEMAS or (name == "additionalItems" and is_older)
            if is_schema and not (name == "items" and is_older and isinstance(said, list)):
                inner.append((f"{place}/{name}", said))
            elif name in _SCHEMA_LISTS or name == "items":
                if not isinstance(said, list) or not said:
                    return Mistake(f"{place}/{name}", said)
                inner += ((f"{place}/{name}/{number}", each) for number, each in enumerate(said))
            elif name in _SCHEMA_MAPS:
                if not isinstance(said, dict):
                    return Mistake(f"{place}/{name}", said)
                inner += ((f"{place}/{name}/{key}", each) for key, each in said.items())
            elif name == "dependencies":
                if not isinstance(said, dict):
                    return Mistake(f"{place}/{name}", said)
                inner += (
                    (f"{place}/{name}/{key}", each) for key, each in said.items() if not _are_names(each)
                )
            elif (name in values and not values[name](said)) or (is_draft4 and _lacks_bound(name, value)):
                return Mistake(f"{place}/{name}", said)
        pending += reversed(inner)
    return None


def _lacks_bound(name: str, schema: Mapping[str, Any]) -> bool:
    return name in _BOUNDS and _BOUNDS[name] not in schema


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and (isinstance(value, int) or value.is_integer())


def _is_above_zero(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


def _are_lists_of_names(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_are_names, value.values()))


def _is_type(value: Any) -> bool:
    if isinstance(value, str):
        return value in _TYPES
    return bool(value) and _are_names(value) and _TYPES.issuperset(value)


def _rules() -> Iterator[tuple[tuple[str, ...], Callable[[Any], bool]]]:
    yield ("type",), _is_type
    yield ("required",), _are_names
    yield ("dependentRequired",), _are_lists_of_names
    yield ("enum", "examples"), _is_list
    yield ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"), _is_number
    yield ("multipleOf",), _is_above_zero
    yield ("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), _is_count
    yield ("maxContains", "minContains"), _is_count
    yield ("uniqueItems", "deprecated", "readOnly", "writeOnly"), _is_bool
    yield ("$id", "$ref", "$anchor", "$dynamicRef", "$dynamicAnchor", "$comment", "$schema"), _is_text
    yield ("title", "description", "pattern", "format", "contentEncoding", "contentMediaType"), _is_text


_VALUES: Mapping[str, Callable[[Any], bool]] = {name: rule for names, rule in _rules() for name in names}
_VALUES_IN_DRAFT_4: Mapping[str, Callable[[Any], bool]] = {
    **_VALUES,
    **dict.fromkeys(_BOUNDS, _is_bool),
    "id": _is_text,
    "required": lambda names: _are_names(names) and names != [],
    "enum": lambda values: _is_list(values) and values != [],
}
