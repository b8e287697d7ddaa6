"""The schemas of types."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from arbora.frontend.language.typed import schema_and_reader


class Place(TypedDict):
    city: str


class Trip(msgspec.Struct):
    places: list[Place]
    days: dict[str, int]
    properties: Place | None = None


class Stop(pydantic.BaseModel):
    city: str


class Tour(pydantic.BaseModel):
    stops: list[Stop]


class Open(pydantic.BaseModel, extra="allow"):
    city: str


def objects(schema: Any) -> list[Any]:
    """The `additionalProperties` of each object with fields, None if it is absent."""
    if isinstance(schema, list):
        return [found for each in schema for found in objects(each)]
    if not isinstance(schema, dict):
        return []
    own = (
        [schema.get("additionalProperties")]
        if schema.get("type") == "object" and "properties" in schema
        else []
    )
    return own + [found for each in schema.values() for found in objects(each)]


@pytest.mark.parametrize(("kind", "count"), [(Trip, 2), (Tour, 2), (list[Place], 1), (Place, 1)])
def test_objects_of_a_type_have_its_fields_alone(kind: object, count: int) -> None:
    schema, _ = schema_and_reader(kind)
    assert objects(schema) == [False] * count


def test_maps_and_models_that_allow_more_fields_stay_open() -> None:
    trip, _ = schema_and_reader(Trip)
    assert trip["$defs"]["Trip"]["properties"]["days"]["additionalProperties"] == {"type": "integer"}  # type: ignore[index]
    assert objects(schema_and_reader(Open)[0]) == [True]


def test_a_schema_is_sent_as_it_is_given() -> None:
    given = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert schema_and_reader(given)[0] is given
