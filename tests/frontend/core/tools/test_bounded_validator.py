"""A check of a call ends for any schema and any text, and reads nothing outside of the schema."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import jsonschema
import pytest
import regex
from arbora.frontend.core.tools.call_syntax import Call
from arbora.frontend.core.tools.schema_mistakes import describe_mistake
from arbora.frontend.core.tools.tool_check import BoundedValidator, check_against
from counted_calls import at_most_calls
from hypothesis import given, settings
from hypothesis import strategies as st

MAX_CALLS = 2_000_000  # each makes at most half of them; without a limit it would go on for hours
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([1.0, 0.5, "a", "ab", "b1", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b1", "c"]), inner),
    max_leaves=8,
)
SCHEMAS: list[dict[str, Any]] = [
    {"type": "array", "uniqueItems": True},
    {"uniqueItems": True, "items": {"uniqueItems": True}},
    {"pattern": "b", "additionalProperties": False},
    {"patternProperties": {"b": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
    {"properties": {"a": {"const": 1}}, "additionalProperties": False},
    {"properties": {"a": True}, "patternProperties": {"^c": {}}, "additionalProperties": False},
    {"anyOf": [{"required": ["a"]}, {"items": {"$ref": "#"}}], "properties": {"a": {"$ref": "#"}}},
    {"properties": {"a": {}}, "unevaluatedProperties": False},
    {"$defs": {"t": {"$anchor": "t", "properties": {"a": {"$ref": "#t"}}, "minProperties": 1}}, "$ref": "#t"},
    {"$id": "http://h/a", "$defs": {"t": {"$id": "b", "type": "array"}}, "properties": {"a": {"$ref": "b"}}},
    {"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}, "not": {"required": ["c"]}},
    {"$schema": DRAFT_7, "items": [{"type": "integer"}], "additionalItems": {"pattern": "^a"}},
]


def doubling(levels: int, **more: Any) -> dict[str, Any]:
    """Each level looks twice at the next one."""
    names = range(levels)
    defs: dict[str, Any] = {
        str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}, {"$ref": f"#/$defs/{n + 1}"}], **more} for n in names
    }
    return {"$defs": {**defs, str(levels): {}}, "$ref": "#/$defs/0"}


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
@given(value=VALUES)
@settings(max_examples=30, deadline=None)
def test_validity_agrees_with_jsonschema(schema: dict[str, Any], value: Any) -> None:
    plain = jsonschema.validators.validator_for(schema)(schema)
    assert BoundedValidator(schema).is_valid(value) == plain.is_valid(value)


SLOW: dict[str, tuple[dict[str, Any], Any]] = {
    "pattern": ({"properties": {"a": {"pattern": "^(a|a)*$"}}}, {"a": "a" * 60 + "b"}),
    "names": ({"patternProperties": {"^(a|a)*$": False}}, {"a" * 60 + "b": 1}),
    "other names": (
        {"patternProperties": {"^(a|a)*$": {}}, "additionalProperties": False},
        {"a" * 60 + "b": 1},
    ),
    "a large pattern": ({"pattern": "(a{1000}){1000}(b{1000}){1000}"}, "a"),
    "a long pattern": ({"pattern": "|".join("abc" * n for n in range(5_000))}, "a"),
    "doubling": (doubling(60), {}),
    "doubling in dialects": (doubling(60, **{"$schema": DRAFT_7}), {}),
    "doubling under data": (
        {"properties": {"enum": doubling(60)}, "$defs": doubling(60)["$defs"]},
        {"enum": 1},
    ),
    "unevaluated": ({**doubling(60), "unevaluatedProperties": False}, {"a": 1}),
    "unevaluated names": (
        {"patternProperties": {"^(a|a)*$": {}}, "unevaluatedProperties": False},
        {"a" * 60 + "b": 1},
    ),
    "many values": ({"items": {"enum": [f"v{n}" for n in range(20_000)]}}, ["a"] * 5_000),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_check_that_takes_too_long_fails_the_call(name: str) -> None:
    schema, value = SLOW[name]
    fits = check_against([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    with at_most_calls(MAX_CALLS):
        assert not fits(Call("f", json.dumps(value)))


def test_anchors_are_looked_for_once() -> None:
    references = [{"$ref": "#x"}] * 4_000
    schema = {"$defs": {"a": {"$anchor": "x", "type": "integer"}}, "properties": {"l": {"allOf": references}}}
    with at_most_calls(MAX_CALLS):
        validator = BoundedValidator(schema)
        assert validator.is_valid({"l": 1}) and not validator.is_valid({"l": "1"})
        assert describe_mistake({**schema, "properties": {"l": {"allOf": references[:1_000]}}}) is None


EMAIL = r"^[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,255}\.[A-Za-z]{2,63}$"


def test_repeats_side_by_side_are_few() -> None:
    validator = BoundedValidator({"pattern": EMAIL})
    assert validator.is_valid("a.b@example.org") and not validator.is_valid("a.b@example")
    assert BoundedValidator({"pattern": r"^(\d{1,3}\.){3}\d{1,3}(:\d{1,5})?$"}).is_valid("127.0.0.1:80")


@pytest.mark.parametrize(
    "pattern",
    [
        "(x{1000}){1000}",
        "(?:x{1000}){1000}",
        "(?x)(x{1000}) {1000}",
        "((x{1000})*y){1000}",
        r"(\)x{1000}){1000}",
        "([)]x{1000}){1000}",
        "([[:alpha:])]x{1000}){1000}",
        "(?P<n>x{1000}){1000}",
        "(a|x{1000}|b){500}",
        "(((x{50}){50}){50}){50}",
    ],
)
def test_repeats_of_repeats_are_refused_before_they_are_compiled(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regex, "compile", pytest.fail)
    assert not BoundedValidator({"pattern": pattern}).is_valid("x")


def test_items_of_many_kinds_are_compared_in_time() -> None:
    validator = BoundedValidator({"uniqueItems": True})
    values: list[Any] = [each for n in range(5_000) for each in (n, str(n), [n])]
    with at_most_calls(MAX_CALLS):
        assert validator.is_valid(values) and not validator.is_valid([*values, [7.0]])


def test_each_check_has_all_its_steps() -> None:
    validator = BoundedValidator({"type": "array", "items": {"type": "integer"}})
    assert all(validator.is_valid([1] * 5_000) for _ in range(5))


def test_an_array_can_be_too_long_to_be_checked() -> None:
    validator = BoundedValidator({"type": "array", "items": {"type": "integer"}})
    assert not validator.is_valid([1] * 100_000)


def test_a_reference_out_of_the_schema_is_never_fetched() -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            schema = {"properties": {"a": {"$ref": f"http://127.0.0.1:{server.server_port}/secret"}}}
            fits = check_against([{"type": "function", "function": {"name": "f", "parameters": schema}}])
            assert not fits(Call("f", '{"a": 1}'))
            assert describe_mistake({**schema, "items": {"$ref": "#/properties/a"}}) is None
        finally:
            server.shutdown()
            thread.join()
    assert not asked


def test_references_that_double_lead_somewhere_and_are_found_in_time() -> None:
    with at_most_calls(MAX_CALLS):
        assert describe_mistake(doubling(60)) is None
