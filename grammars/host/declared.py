"""Forbids undeclared properties in a schema for llguidance.

`grammars.schema.read.declared` does so for automata. Here only an object that one subschema alone constrains
gets `"additionalProperties": false`. In others the names of all subschemas would have to be allowed, so they
stay as they are written.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..schema.read.json_text import NAMED, Json, walk_objects
from .json_schema import find_target

_SEVERAL = frozenset(
    ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies", "patternProperties")
)
"""Keywords by which several subschemas may constrain the same value, member or item."""
_SAYING = frozenset(
    (
        "additionalProperties",
        "unevaluatedProperties",
        "propertyNames",
        "minProperties",
        "dependentRequired",
        "enum",
        "const",
    )
)
_MEMBERS = frozenset(("properties", "additionalProperties", "items", "prefixItems", "additionalItems"))
_WITHOUT_MEANING = frozenset(
    ("title", "description", "default", "examples", "$schema", "$defs", "definitions")
)


def forbid_undeclared(schema: Json) -> None:
    """Sets `additionalProperties` to false in the schema's objects that have `properties` and don't say."""
    if not all(_refers_by_pointer(path, fields) for path, fields in walk_objects(schema)):
        return
    found: dict[int, tuple[dict[str, Json], bool]] = {}
    pending = [(schema, True)]
    while pending:
        part, is_alone = pending.pop()
        if not isinstance(part, dict):
            continue
        known = found.get(id(part))
        if known is None or (known[1] and not is_alone):
            found[id(part)] = part, is_alone
            pending += _list_inner(schema, part, is_alone)
    for fields, is_alone in found.values():
        if is_alone and _may_be_closed(fields):
            fields["additionalProperties"] = False


def _list_inner(root: Json, fields: dict[str, Json], is_alone: bool) -> Iterator[tuple[Json, bool]]:
    """The subschemas of a subschema, and whether each alone constrains its value."""
    only = fields.keys() - _WITHOUT_MEANING
    is_plain = is_alone and _SEVERAL.isdisjoint(fields) and "contains" not in fields
    for keyword, value in fields.items():
        if keyword in _WITHOUT_MEANING or keyword in ("enum", "const"):
            continue
        passes_on = is_alone and only == {keyword} and keyword in ("$ref", "anyOf")
        is_inner_alone = passes_on or (is_plain and keyword in _MEMBERS)
        if keyword == "$ref":
            yield find_target(root, str(value)), is_inner_alone
        elif isinstance(value, dict):
            children = value.values() if keyword in NAMED else (value,)
            yield from ((child, is_inner_alone) for child in children)
        elif isinstance(value, list):
            yield from ((child, is_inner_alone) for child in value)


def _may_be_closed(fields: dict[str, Json]) -> bool:
    properties, required = fields.get("properties"), fields.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    says_otherwise = not (_SAYING | _SEVERAL).isdisjoint(fields)
    return not says_otherwise and all(name in properties for name in required)


def _refers_by_pointer(path: tuple[str, ...], fields: dict[str, Json]) -> bool:
    reference = fields.get("$ref", "#")
    is_pointer = reference == "#" or str(reference).startswith("#/")
    return (
        is_pointer
        and "$dynamicRef" not in fields
        and "$recursiveRef" not in fields
        and not (path and "$id" in fields)
    )
