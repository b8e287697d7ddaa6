"""JSON schemas of Python types, and their values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec

Read = Callable[[str], object]


def schema_and_reader(kind: object) -> tuple[object, Read]:
    """A schema as the API takes it, and a function that makes the value of a reply's text.

    `kind` is a schema (its values are what JSON has), True for any JSON object, or a type: a pydantic model,
    dataclass, TypedDict, msgspec.Struct, Literal, a list of these, and so on, or pydantic's TypeAdapter of
    one. Objects of a type have its fields alone. Raises TypeError for another type.
    """
    if isinstance(kind, dict) or kind is True:
        return kind, msgspec.json.decode
    if hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate_json"):  # pydantic's interface
        return _closed(kind.model_json_schema()), kind.model_validate_json
    if hasattr(kind, "json_schema") and hasattr(kind, "validate_json"):  # a TypeAdapter's interface
        return _closed(kind.json_schema()), kind.validate_json
    try:
        schema: dict[str, Any] = msgspec.json.schema(kind)
    except TypeError as error:
        if (adapter := _type_adapter(kind)) is not None:
            return schema_and_reader(adapter)
        raise TypeError(
            f"json_schema={kind!r} is no schema and no type that has one ({error}). Give a dict, or a "
            "dataclass, TypedDict, msgspec.Struct or pydantic model."
        ) from None
    return _closed(schema), msgspec.json.Decoder(kind).decode


def describe_mismatch(name: str, text: str, finish_reason: str, error: ValueError) -> str:
    """Why the text of a reply that is called `name` can't be read."""
    cut = " Give it more max_tokens, or complete_json=True." if finish_reason == "length" else ""
    return f"{name} is no value of its type: {error}.{cut} It is {text!r}."


def _type_adapter(kind: Any) -> object:
    """pydantic's adapter of a type with its models; None if pydantic isn't loaded or knows no such type."""
    if "pydantic" not in sys.modules:
        return None
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(kind)
    except PydanticUserError:
        return None


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
