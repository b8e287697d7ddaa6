"""Keywords of JSON schemas that may be misspelt."""

from __future__ import annotations

import pytest
from arbora.frontend.core.grammar_fields import schema_spec
from arbora.frontend.core.tools import schema_keywords
from arbora.frontend.core.tools.schema_keywords import (
    MAX_LISTED,
    MAX_UNKNOWN,
    meant_keyword,
    misspelt_keywords,
)
from msgspec import Raw


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"minLenght": 3}, {"#/minLenght": "minLength"}),
        ({"propertys": {}, "Required": []}, {"#/propertys": "properties", "#/Required": "required"}),
        ({"properties": {"a/b": {"items": {"anyof": []}}}}, {"#/properties/a~1b/items/anyof": "anyOf"}),
        (
            {"properties": {"a": {"typ": 1}, "b": {"typ": 1}}},
            dict.fromkeys(("#/properties/a/typ", "#/properties/b/typ"), "type"),
        ),
        (
            {"allOf": [True, {"not": {"$defs": {"a": {"formt": "date"}}}}]},
            {"#/allOf/1/not/$defs/a/formt": "format"},
        ),
        ({"items": [{"minimun": 1}], "dependencies": {"a": ["typ"]}}, {"#/items/0/minimun": "minimum"}),
        ({"properties": {"typ": {}, "patern": {}}, "$defs": {"enums": {}}}, {}),
        ({"const": {"typ": 1}, "enum": [{"typ": 1}], "default": {"typ": 1}}, {}),
        ({"title": "", "nullable": True, "x-enum": [], "note": "", "enumNames": []}, {}),
        ({"properties": ["typ"], "items": "typ", "allOf": {"typ": 1}}, {"#/allOf/typ": "type"}),
        (True, {}),
    ],
)
def test_a_keyword_that_is_like_a_known_one_is_found_where_keywords_are(
    schema: object, found: dict[str, str]
) -> None:
    misspelt = misspelt_keywords(schema, "json_schema")
    assert {path: meant_keyword(name) for name, path in misspelt} == found
    assert all(path.endswith(name) for name, path in misspelt)


def test_the_search_ends_in_a_schema_with_many_unknown_names() -> None:
    assert not misspelt_keywords({**{f"name {n}": n for n in range(MAX_UNKNOWN)}, "typ": 1}, "json_schema")
    many = {"allOf": [{"nullable": True, "typ": 1}] * 400}
    assert len(misspelt_keywords(many, "json_schema")) == MAX_LISTED


def test_a_misspelt_keyword_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schema_keywords, "_warned", set())
    for _ in range(2):
        assert schema_spec(Raw(b'{"type": "string", "maxLenght": 3}'), "response_format.schema")
    assert caplog.messages == [
        "unknown keyword 'maxLenght' in response_format.schema: did you mean maxLength?"
    ]
