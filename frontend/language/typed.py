"""JSON schemas of Python types, and their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


def schema_and_reader(kind: object) -> tuple[object, Callable[[str], object]]:
    """A schema as the API takes it, and a function that makes the value of a reply's text.

    `kind` is a schema (its values are what JSON has), True for any JSON object, a pydantic model, or a type
    that msgspec knows: dataclasses, TypedDicts, Structs, Literals, lists of these, and so on. Objects of a
    type have its fields alone. Raises TypeError for another type.
    """
    if isinstance(kind, dict) or kind is True:
        return kind, msgspec.json.decode
    if hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate_json"):  # pydantic's interface
        return _closed(kind.model_json_schema()), kind.model_validate_json
    try:
        schema: dict[str, Any] = msgspec.json.schema(kind)
    except TypeError as error:
        raise TypeError(
            f"json_schema={kind!r} is no schema and no type that has one ({error}). Give a dict, or a "
            "dataclass, TypedDict, msgspec.Struct or pydantic model."
        ) from None
    return _closed(schema), msgspec.json.Decoder(kind).decode


def _closed(schema: Any) -> Any:
    """The schema with `additionalProperties` false in each object that has fields and does not say it."""
    if not isinstance(schema, dict):
        return schema
    closed: dict[str, Any] = {"additionalProperties": False} if "properties" in schema else {}
    for keyword, value in schema.items():
        if keyword in ("properties", "$defs"):
            closed[keyword] = {name: _closed(each) for name, each in value.items()}
        elif keyword in ("items", "additionalProperties"):
            closed[keyword] = _closed(value)
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            closed[keyword] = [_closed(each) for each in value]
        else:
            closed[keyword] = value
    return closed
