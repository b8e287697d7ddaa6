"""The meta-schema's mistakes are found in a schema, cheaply."""

from __future__ import annotations

from typing import Any

import pytest
from arbora.frontend.core.tools.schema_mistakes import describe_mistake, find_mistake
from counted_calls import at_most_calls
from hypothesis import given
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator, validator_for

NAMES = [
    "type",
    "required",
    "dependentRequired",
    "enum",
    "examples",
    "maximum",
    "exclusiveMinimum",
    "multipleOf",
    "maxLength",
    "minItems",
    "uniqueItems",
    "title",
    "pattern",
    "items",
    "prefixItems",
    "allOf",
    "not",
    "if",
    "additionalProperties",
    "properties",
    "$defs",
    "patternProperties",
    "dependentSchemas",
    "other",
]
SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.floats(-2, 2),
    st.sampled_from(["string", "a"]),
    st.lists(st.sampled_from(["string", "null", "a", 1]), max_size=3),
    st.dictionaries(st.sampled_from("ab"), st.lists(st.sampled_from("ab"), max_size=2), max_size=2),
)
SCHEMAS = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
        st.dictionaries(st.sampled_from("ab"), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(SCHEMAS)
def test_a_mistake_is_found_where_the_meta_schema_finds_one(schema: Any) -> None:
    is_schema = Draft202012Validator(Draft202012Validator.META_SCHEMA).is_valid(schema)
    assert (find_mistake(schema) is None) == is_schema


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        *({keyword: [{}] * 100_000} for keyword in ("allOf", "anyOf", "oneOf")),
        {"properties": {str(n): {} for n in range(100_000)}},
        {"allOf": [True] * 100_000},
        {"allOf": [3] * 100_000},
        {"required": [{"a": n} for n in range(100_000)]},
        nested(50_000),
    ],
)
def test_a_schema_of_any_size_or_depth_is_checked_in_few_calls(schema: dict[str, Any]) -> None:
    with at_most_calls(600_000):  # at most 5 for each of 100,000 subschemas
        find_mistake(schema)


def test_older_drafts_have_their_own_forms() -> None:
    older = {"$schema": "http://json-schema.org/draft-04/schema#"}
    schema = {"items": [{}], "maximum": 3, "exclusiveMaximum": True}
    assert find_mistake({**older, **schema}) is None
    assert find_mistake({"items": [{}]}) == ("/items", [{}])
    assert find_mistake({"exclusiveMaximum": True}) == ("/exclusiveMaximum", True)


@pytest.mark.parametrize("draft", ["04", "07"])
@pytest.mark.parametrize(
    "schema",
    [
        {"dependencies": 5},
        {"dependencies": {"a": 5}},
        {"dependencies": {"a": ["b"], "c": {"type": "string"}}},
        {"additionalItems": 5},
        {"additionalItems": {"type": 5}},
        {"additionalItems": False},
        {"type": True},
        {"required": True},
        {"enum": True},
        {"minLength": True},
        {"maximum": 3, "exclusiveMaximum": True},
        {"maximum": 3, "exclusiveMaximum": 2},
        {"exclusiveMinimum": "2", "minimum": 1},
        {"items": [{}], "required": ["a"]},
        {"definitions": {"a": {"type": "strng"}}},
        {"definitions": []},
    ],
)
def test_an_older_draft_has_the_mistakes_of_its_meta_schema(draft: str, schema: dict[str, Any]) -> None:
    named = {"$schema": f"http://json-schema.org/draft-{draft}/schema#", **schema}
    kind = validator_for(named)
    is_schema = kind(kind.META_SCHEMA).is_valid(named)
    assert (find_mistake(named) is None) == is_schema
    assert (describe_mistake(named) is None) == is_schema


@pytest.mark.parametrize("draft", ["04", "06", "07"])
def test_the_id_of_a_schema_is_text_in_every_draft(draft: str) -> None:
    named = f"http://json-schema.org/draft-{draft}/schema#"
    assert find_mistake({"$schema": named, "$id": True}) == ("/$id", True)


def test_a_bound_of_draft_4_is_refused_with_a_hint() -> None:
    assert "draft 4 allows it" in str(describe_mistake({"minimum": 1, "exclusiveMinimum": True}))
    assert "draft 4" not in str(describe_mistake({"minimum": True}))
