"""Structural tags that cannot be read: the error names the field of the format."""

from __future__ import annotations

from typing import Any

import pytest
from http_world import HttpWorld, refused

pytestmark = pytest.mark.asyncio(loop_scope="module")
TAG: Any = {"begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}


@pytest.mark.parametrize(
    ("format", "field", "says"),
    [
        (5, "", "must be an object"),
        ({"type": "qwen_xml_parameter"}, ".type", "must be one of const_string, json_schema"),
        ({"type": "const_string"}, ".value", "missing"),
        ({"type": "const_string", "value": 1}, ".value", "must be a string"),
        ({"type": "json_schema", "json_schema": []}, ".json_schema", "must be a JSON schema"),
        ({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}, ".style", "must be 'json'"),
        ({"type": "any_text", "excluded_str": ["x"]}, ".excluded_str", "not supported"),
        ({"type": "sequence", "elements": []}, ".elements", "at least one"),
        ({"type": "or", "elements": []}, ".elements", "at least one"),
        ({"type": "or", "elements": [{"type": "any_text"}, {}]}, ".elements[1].type", "missing"),
        ({"type": "tag", **TAG, "end": 3}, ".end", "a string or a list"),
        ({"type": "tag", **TAG, "end": []}, ".end", "a string or a list"),
        ({"type": "tag", "begin": "a", "end": "b"}, ".content", "missing"),
        ({"type": "triggered_tags", "tags": [TAG], "triggers": [""]}, ".triggers[0]", "not empty"),
        ({"type": "triggered_tags", "tags": [TAG], "triggers": ["<b"]}, ".triggers", "'<a>'"),
        (
            {"type": "triggered_tags", "tags": [TAG], "triggers": ["<a"], "at_least_one": 1},
            ".at_least_one",
            "true or false",
        ),
        ({"type": "tags_with_separator", "tags": [TAG]}, ".separator", "missing"),
        (
            {"type": "tags_with_separator", "tags": [{"type": "or"}], "separator": ""},
            ".tags[0].type",
            "'tag'",
        ),
    ],
)
async def test_a_structural_tag_that_cannot_be_read_names_the_field_of_its_format(
    world: HttpWorld, format: Any, field: str, says: str
) -> None:
    error = await refused(world, response_format={"type": "structural_tag", "format": format})
    assert error["param"] == f"response_format.format{field}"
    assert says in error["message"]


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"triggers": None}, "triggers"),
        ({"structures": [{"begin": "<a>", "schema": {}}]}, "structures[0].end"),
        ({"structures": [{"begin": "b", "schema": {}, "end": ""}]}, "triggers"),
    ],
)
async def test_the_older_form_of_structural_tags_is_checked_too(
    world: HttpWorld, changed: Any, param: str
) -> None:
    structures = [{"begin": "<a>", "schema": {}, "end": "</a>"}]
    fields = {"type": "structural_tag", "structures": structures, "triggers": ["<a"], **changed}
    assert (await refused(world, response_format=fields))["param"] == f"response_format.{param}"


async def test_a_format_nested_without_end_is_refused(world: HttpWorld) -> None:
    format: Any = {"type": "any_text"}
    for _ in range(40):
        format = {"type": "sequence", "elements": [format]}
    error = await refused(world, response_format={"type": "structural_tag", "format": format})
    assert "nested" in error["message"]
