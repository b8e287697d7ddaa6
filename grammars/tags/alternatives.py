"""The choices between parts of a structural tag, for both of its compilers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from ..errors import GrammarError
from .format import Format, JsonSchema, Tag


def merge_schemas(elements: Sequence[Format]) -> list[Format]:
    """Merges schemas with the same separators into one, because their values may begin alike."""
    schemas: dict[tuple[str, str] | None, list[JsonSchema]] = {}
    for element in elements:
        if type(element) is JsonSchema:
            schemas.setdefault(element.separators, []).append(element)
    others: list[Format] = [element for element in elements if type(element) is not JsonSchema]
    return [*map(_any_schema, schemas.values()), *others]


def _any_schema(schemas: list[JsonSchema]) -> JsonSchema:
    if len(schemas) == 1:
        return schemas[0]
    branches = [json.loads(bytes(schema.json_schema)) for schema in schemas]
    moved = {str(place): rebase(branch, f"#/$defs/{place}") for place, branch in enumerate(branches)}
    text = json.dumps({"anyOf": [{"$ref": f"#/$defs/{place}"} for place in moved], "$defs": moved})
    return msgspec.structs.replace(schemas[0], json_schema=msgspec.Raw(text.encode()))


def rebase(schema: Any, root: str) -> Any:
    """Prefixes the schema's own references with its new position."""
    if isinstance(schema, list):
        return [rebase(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: rebase(value, root) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = root + reference[1:]
    return moved


def find_trigger(tag: Tag, triggers: Sequence[str]) -> str:
    """The trigger that is complete first in the tag's beginning."""
    found = [trigger for trigger in triggers if tag.begin.startswith(trigger)]
    if not found:
        raise GrammarError(f"no trigger begins the tag {tag.begin!r}")
    return min(found, key=len)
