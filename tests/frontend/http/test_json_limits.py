"""The values and levels of a JSON text, counted without decoding it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from arbora.frontend.app.apis import APIS
from arbora.frontend.app.application import server_routes
from arbora.frontend.http.json_limits import _FIELD_BYTES, JsonShape, ShapeReader, check_field_sizes
from arbora.frontend.http.operation import DescribedRoute
from http_world import http_world
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.inspect import BoolType, FloatType, IntType, Metadata, NoneType, Type, UnionType, type_info

SHORT_FIELDS = {
    "cache_control",
    "cache_lease",
    "cache_salt",
    "completion_window",
    "context_management",
    "conversation",
    "diagnostics",
    "endpoint",
    "guided_whitespace_pattern",
    "include",
    "input_file_id",
    "keep_alive",
    "logit_bias",
    "lora_name",
    "lora_path",
    "metadata",
    "model",
    "name",
    "options",
    "output_expires_after",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning",
    "stop",
    "stop_sequences",
    "stop_token_ids",
    "stream_options",
    "think",
    "thinking",
    "tool_choice",
    "user",
}
"""Fields of bodies that hold neither a prompt nor a schema. All others but numbers and choices are long."""

texts = st.text(st.sampled_from('ab"\\,[]{}é\n'), max_size=8)
values = st.recursive(
    st.none() | st.integers(-99, 99) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=30,
)


def depth(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(map(depth, inner), default=0) if isinstance(value, dict | list) else 0


def strings(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(strings, value.values()))
    return sum(map(strings, value)) if isinstance(value, list) else isinstance(value, str)


def containers(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + sum(map(containers, inner)) if isinstance(value, dict | list) else 0


def read(text: bytes, chunk: int) -> JsonShape:
    reader = ShapeReader()
    for start in range(0, len(text), chunk):
        reader.read(text[start : start + chunk])
    return reader.shape


@given(value=values, chunk=st.integers(1, 9), ensure_ascii=st.booleans())
def test_the_shape_is_that_of_the_decoded_value_however_it_is_cut(
    value: Any, chunk: int, ensure_ascii: bool
) -> None:
    shape = read(json.dumps(value, ensure_ascii=ensure_ascii).encode(), chunk)
    assert (shape.depth, shape.containers) == (depth(value), containers(value))
    assert shape.strings == strings(value)


@given(fields=st.dictionaries(texts, values, max_size=6))
def test_fields_are_those_of_the_outermost_object(fields: dict[str, Any]) -> None:
    assert read(json.dumps(fields).encode(), 1 << 20).fields == max(len(fields) - 1, 0)


@given(st.lists(st.integers(0, 9), min_size=1))
def test_every_element_of_a_list_counts_as_a_value(elements: list[int]) -> None:
    assert read(json.dumps(elements).encode(), 7).values == len(elements)


def is_number_or_choice(kind: Type) -> bool:
    if isinstance(kind, UnionType):
        return all(map(is_number_or_choice, kind.types))
    if isinstance(kind, Metadata):
        return "enum" in (kind.extra_json_schema or {}) or is_number_or_choice(kind.type)
    return isinstance(kind, BoolType | FloatType | IntType | NoneType)


async def test_every_prompt_and_schema_of_every_body_has_a_limit_of_its_own() -> None:
    async with http_world(replica=False) as world:
        routes = [route for _, route in server_routes(world.http_service, APIS)]
    operations = [route.operation for route in routes if isinstance(route, DescribedRoute)]
    in_json = [each for each in operations if each.body_type == "application/json"]
    bodies = {body for each in in_json for body in (each.body, *each.other_bodies) if body is not None}
    fields = [field for body in bodies for field in msgspec.structs.fields(body)]
    long = {field.encode_name for field in fields if not is_number_or_choice(type_info(field.type))}
    assert long - set(_FIELD_BYTES) == SHORT_FIELDS


def test_a_long_prompt_of_token_ids_and_a_long_schema_fit() -> None:
    ids, schema = (
        Raw(json.dumps([12_345] * 25_000).encode()),
        Raw(json.dumps({"enum": "a" * 200_000}).encode()),
    )
    check_field_sizes({"prompt_token_ids": ids, "format": schema}, ("prompt_token_ids", "format"))
