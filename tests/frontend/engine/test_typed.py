"""Types in place of JSON schemas: their schemas, and the values that replies have."""

from __future__ import annotations

import enum
import pickle
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import arbora
import msgspec
import pydantic
import pytest
from arbora.frontend.engine.typed import schema_and_reader

HELLO = [{"role": "user", "content": "Hello, which bird is it?"}]


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


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Bird(pydantic.BaseModel):
    colour: Colour
    eggs: Literal[1, 2]
    nest: Nest | None


class Nest(pydantic.BaseModel):
    high: bool


@dataclass
class Cage:
    bird: Bird


@dataclass
class Animal:
    kind: Literal["cat", "dog"]
    tame: bool


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


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (Trip, 2),
        (Tour, 2),
        (list[Place], 1),
        (Place, 1),
        (list[Stop], 1),
        (pydantic.TypeAdapter(list[Tour]), 2),
        (dict[str, Tour], 2),
    ],
)
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


def test_a_chat_takes_a_pydantic_model_and_gives_its_value(engine: arbora.Engine) -> None:
    completion = engine.chat(HELLO, json_schema=Bird, n=2, seed=1)
    for choice in completion.choices:
        assert isinstance(choice.value, Bird)
        assert choice.value == Bird.model_validate_json(choice.text)
    assert completion.value == completion.choices[0].value
    assert pickle.loads(pickle.dumps(completion)).value == completion.value


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Animal, Animal),
        (Cage, Cage),
        (pydantic.TypeAdapter(Bird), Bird),
        (list[Bird], list),
        (Bird.model_json_schema(), dict),
        (Literal["yes", "no"], str),
    ],
    ids=str,
)
def test_a_completion_has_the_value_of_any_type_or_schema(
    engine: arbora.Engine, kind: object, expected: type
) -> None:
    value = engine.generate("A bird:", json_schema=kind, seed=2, complete_json=True, max_tokens=150).value
    assert type(value) is expected


async def test_all_methods_take_types(engine: arbora.Engine) -> None:
    options: Any = {"json_schema": Bird, "seed": 3}
    whole = engine.chat(HELLO, **options)
    assert isinstance(whole.value, Bird)
    assert (await engine.achat(HELLO, **options)).value == whole.value
    assert "".join(part.text for part in engine.stream_chat(HELLO, **options)) == whole.text
    assert "".join([part.text async for part in engine.astream_chat(HELLO, **options)]) == whole.text
    completion = engine.generate("A bird:", **options)
    assert isinstance(completion.value, Bird)
    assert (await engine.agenerate("A bird:", **options)).value == completion.value
    assert "".join(part.text for part in engine.stream("A bird:", **options)) == completion.text
    both = engine.chat([HELLO, HELLO], [{"json_schema": Bird, "seed": 3}, {"json_schema": Animal, "seed": 3}])
    assert [type(each.value) for each in both] == [Bird, Animal]


def test_the_value_of_a_cut_reply_is_an_error_that_says_what_to_do(engine: arbora.Engine) -> None:
    completion = engine.chat(HELLO, json_schema=Bird, max_tokens=2)
    with pytest.raises(ValueError, match=r"(?s)no value of its type: .*Give it more max_tokens"):
        completion.value  # noqa: B018


def test_what_is_no_type_is_refused_by_the_option_s_name(engine: arbora.Engine) -> None:
    with pytest.raises(arbora.RequestError, match=r"is no schema and no type that has one") as error:
        engine.chat(HELLO, json_schema=object())
    assert error.value.param == "json_schema"
