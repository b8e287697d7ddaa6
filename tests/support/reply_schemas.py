"""The schemas of answers in a server's /openapi.json."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator


def schema_of(document: Any, path: str, status: str, media_type: str, method: str = "post") -> Any:
    """The schema of an answer, which allows no members that it does not name."""
    schemas = {
        name: {**schema, "additionalProperties": False} if "properties" in schema else schema
        for name, schema in document["components"]["schemas"].items()
    }
    content = document["paths"][path][method]["responses"][status]["content"]
    return {**content[media_type]["schema"], "components": {"schemas": schemas}}


def check(value: Any, schema: Any) -> None:
    Draft202012Validator(schema).validate(value)
