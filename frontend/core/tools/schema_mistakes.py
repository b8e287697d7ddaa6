"""Finds mistakes in a JSON schema, in time linear in its size.

jsonschema checks a schema against its meta-schema, which takes 0.2 ms for each subschema and recurses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing.jsonschema import EMPTY_REGISTRY, specification_with

from .schema_keywords import KEYWORDS

if TYPE_CHECKING:
    from referencing._core import Resolver  # `Resolver` has no public name

MAX_SHOWN = 60  # characters of a wrong value that an error shows
MAX_WITH_REFERENCES = 20_000  # characters of a schema whose references are looked up, which takes about 0.1 s
_TYPES = frozenset(("null", "boolean", "number", "integer", "string", "object", "array"))
_KINDS = {keyword: kind for kind, keywords in KEYWORDS.items() for keyword in keywords}


def describe_mistake(schema: Any) -> str | None:
    """Describes a value that its keyword can't have, or a reference that leads nowhere; None without any.

    The references of a long schema are not looked up.
    """
    mistake = find_mistake(schema)
    if mistake is not None:
        place, value = mistake
        is_draft4 = _KINDS.get(place.rpartition("/")[2]) == "a bound" and value is True
        hint = (
            ' (draft 4 allows it, if "$schema" names that)' if is_draft4 and "$schema" not in schema else ""
        )
        return f"the value at #{place} makes no sense: {json.dumps(value)[:MAX_SHOWN]}{hint}"
    if len(json.dumps(schema)) > MAX_WITH_REFERENCES:
        return None
    try:
        resolver = resolver_of(schema, validator_for(schema))
    except Exception as error:  # the linear check may accept what the libraries do not expect
        return f"it can't be read: {str(error)[:MAX_SHOWN]}"
    for reference in _references_within(schema):
        try:
            resolver.lookup(reference)
        except Exception:  # a pointer into a value that is no object raises other errors
            return f"the reference {reference!r} leads nowhere"
    return None


def find_mistake(schema: Any) -> tuple[str, object] | None:
    """The place (a JSON pointer) and the value of a keyword that can't have that value; None without any.

    References are not followed. In drafts before 2020-12 `items` may be a list, and in draft 4 exclusive
    bounds are true or false.
    """
    named = schema.get("$schema") if isinstance(schema, dict) else None
    is_older = isinstance(named, str) and "2020-12" not in named
    is_draft4 = isinstance(named, str) and "draft-04" in named
    pending = [("", schema)]
    while pending:
        place, value = pending.pop()
        if isinstance(value, bool):
            continue
        if not isinstance(value, dict):
            return place, value
        inner: list[tuple[str, Any]] = []
        for name, said in value.items():
            kind = _KINDS.get(name, "")
            if name == "items" and is_older and isinstance(said, list):
                kind = "schemas"
            elif kind == "a bound":
                kind = "a boolean" if is_draft4 else "a number"
            if kind and not _fits(kind, said):
                return f"{place}/{name}", said
            if "schema" in kind:
                inner += _schemas_in(f"{place}/{name}", kind, said)
        pending += reversed(inner)
    return None


def _schemas_in(place: str, kind: str, said: Any) -> list[tuple[str, Any]]:
    """The schemas in the value of a keyword of that kind, with their places."""
    match kind:
        case "a schema":
            return [(place, said)]
        case "schemas":
            return [(f"{place}/{number}", each) for number, each in enumerate(said)]
        case "schemas by name":
            return [(f"{place}/{name}", each) for name, each in said.items()]
        case "names or schemas by name":
            return [(f"{place}/{name}", each) for name, each in said.items() if not _are_names(each)]
    return []


def _fits(kind: str, said: Any) -> bool:
    """Whether a keyword of that kind can have the value. Schemas inside the value are not checked."""
    match kind:
        case "schemas":
            return isinstance(said, list) and bool(said)
        case "schemas by name" | "names or schemas by name":
            return isinstance(said, dict)
        case "names by name":
            return isinstance(said, dict) and all(map(_are_names, said.values()))
        case "names":
            return _are_names(said)
        case "types":
            if isinstance(said, str):
                return said in _TYPES
            return bool(said) and _are_names(said) and _TYPES.issuperset(said)
        case "a list":
            return isinstance(said, list)
        case "a number":
            return _is_number(said)
        case "a number above 0":
            return _is_number(said) and said > 0
        case "a count":
            return _is_number(said) and said >= 0 and said % 1 == 0
        case "a boolean":
            return isinstance(said, bool)
        case "a text":
            return isinstance(said, str)
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_names(value: Any) -> bool:
    is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return is_list and len(set(value)) == len(value)


def resolver_of(schema: Any, kind: type[Validator]) -> Resolver[Any]:
    """Resolves the schema's references. It searches the schema for anchors once, not at each look-up."""
    resource = specification_with(kind.ID_OF(kind.META_SCHEMA)).create_resource(schema)
    address = resource.id() or ""
    resolver: Resolver[Any] = EMPTY_REGISTRY.with_resource(address, resource).crawl().resolver(address)
    return resolver


def _references_within(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            yield reference
    if isinstance(schema, dict | list):
        for part in schema.values() if isinstance(schema, dict) else schema:
            yield from _references_within(part)
