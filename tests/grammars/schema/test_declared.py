"""Objects that keep to the properties that their schema declares."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import jsonschema
import pytest
from arbora.grammars.host.declared import forbid_undeclared
from json_automata import compact, compile_schema
from llguidance_bytes import Peer

INTEGER = {"type": "integer"}


def an_object(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, INTEGER), **more}


def holding(name: str, schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema}, "required": [name]}


def of_kind(kind: int, *names: str) -> dict[str, Any]:
    return {"properties": {"kind": {"const": kind}, "data": an_object(*names)}, "required": ["kind", "data"]}


KIND_1 = {"properties": {"kind": {"const": 1}}, "required": ["kind"]}
RECURSIVE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "base": {"properties": {"value": INTEGER, "next": {"$ref": "#/$defs/base"}}},
        "node": {
            "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"next": {"$ref": "#/$defs/node"}, "w": {}}}]
        },
    },
}
CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "an object has its own": (an_object("a"), [{}, {"a": 1}], [{"b": 1}, {"a": 1, "b": 1}]),
    "no property is declared": ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
    "a dictionary is open": ({"type": "object"}, [{"b": 1}], []),
    "true is said": (an_object("a", additionalProperties=True), [{"b": 1}], []),
    "a schema is said": (an_object("a", additionalProperties=INTEGER), [{"b": 1}], [{"b": ""}]),
    "names are said": (an_object("a", propertyNames={"maxLength": 2}), [{"b": 1}], [{"long": 1}]),
    "patterns": (an_object("a", patternProperties={"^x-": {}}), [{"a": 1, "x-b": 2}], [{"b": 1}]),
    "all of": ({"allOf": [an_object("a"), an_object("b")]}, [{"a": 1, "b": 2}], [{"a": 1, "c": 2}]),
    "any of": (
        {"anyOf": [an_object("a"), an_object("b")]},
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 2}],
        [{"a": 1, "b": ""}, {"c": 1}],
    ),
    "one of": (
        {"oneOf": [an_object("a", required=["a"]), an_object("b", required=["b"])]},
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": 2}, {"a": 1, "c": 2}],
    ),
    "an alternative is a dictionary": ({"anyOf": [an_object("a"), {"type": "object"}]}, [{"b": 1}], []),
    "an alternative is null": ({"anyOf": [an_object("a"), {"type": "null"}]}, [None, {"a": 1}], [{"b": 1}]),
    "alternatives that require": (
        an_object("a", anyOf=[{"required": ["a"]}, {"required": ["b"]}]),
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1, "c": 1}],
    ),
    "if": (
        an_object("kind", "x", **{"if": KIND_1, "then": an_object("y"), "else": an_object("z")}),
        [{"kind": 1, "y": 2}, {"kind": 2, "z": 1}, {"x": 1, "z": 1}],
        [{"kind": 1, "z": 2}, {"kind": 2, "y": 1}, {"kind": 1, "w": 1}],
    ),
    "a condition alone closes nothing": ({"if": KIND_1, "then": an_object("y")}, [{"kind": 2, "w": 1}], []),
    "not": (an_object("a", **{"not": KIND_1}), [{"a": 1}, {"kind": 2}], [{"kind": 1}, {"b": 1}]),
    "what is required": (an_object("a", required=["z"]), [{"a": 1, "z": {"k": 1}}], [{"z": 1, "y": 1}]),
    "what another name needs": (
        an_object("a", dependentRequired={"a": ["b"]}),
        [{"a": 1, "b": 1}],
        [{"c": 1}],
    ),
    "more members than names": (an_object("a", minProperties=2), [{"a": 1, "z": 1}, {"y": 1, "z": 1}], []),
    "a listed object": ({**an_object("a"), "enum": [{"a": 1, "b": 2}]}, [{"a": 1, "b": 2}], [{"a": 1}]),
    "members and items": (
        {"type": "array", "items": an_object("a"), "contains": an_object("b", required=["b"])},
        [[{"a": 1, "b": 1}], [{"a": 1}, {"b": 2}]],
        [[{"b": 1, "c": 1}]],
    ),
    "members of a dictionary": (
        {"type": "object", "additionalProperties": an_object("a")},
        [{"k": {"a": 1}}],
        [{"k": {"b": 1}}],
    ),
    "a member that two subschemas declare": (
        {"allOf": [holding("m", an_object("x")), holding("m", an_object("y", required=["y"]))]},
        [{"m": {"x": 1, "y": 1}}],
        [{"m": {"y": 1, "z": 1}}, {"m": {"y": 1}, "n": 1}],
    ),
    "a member that an inner subschema requires more of": (
        {**holding("m", an_object("x")), "allOf": [holding("m", {"required": ["z"]})]},
        [{"m": {"z": 1}}, {"m": {"x": 1, "z": 1}}],
        [{"m": {"y": 1, "z": 1}}],
    ),
    "a member that a pattern declares too": (
        {**holding("m", an_object("x")), "patternProperties": {"^m": an_object("y", required=["y"])}},
        [{"m": {"x": 1, "y": 1}}],
        [{"m": {"y": 1, "z": 1}}],
    ),
    "a member that is negated": (
        {**holding("p", an_object("a")), "not": holding("p", an_object("a"))},
        [],
        [{"p": {"a": 1}}, {"p": {"b": 1}}],
    ),
    "a member that differs by kind": (
        {"oneOf": [of_kind(1, "a"), of_kind(2, "b")]},
        [{"kind": 1, "data": {"a": 1}}, {"kind": 2, "data": {"b": 1}}],
        [{"kind": 1, "data": {"b": 1}}],
    ),
    "recursion": (
        RECURSIVE,
        [{"value": 1, "next": {"value": 2, "next": {"value": 3, "w": 1}, "w": 2}, "w": 3}],
        [{"value": 1, "next": {"z": 1}}],
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", ["schema", "any"])
def test_objects_have_declared_properties_alone(name: str, order: Any) -> None:
    schema, allowed, refused = CASES[name]
    if not allowed:
        with pytest.raises(Exception, match="no value"):
            compile_schema(schema, property_order=order, additional_properties="declared")
        return
    automaton = compile_schema(schema, property_order=order, additional_properties="declared")
    validator = jsonschema.Draft202012Validator(schema)
    for value in allowed:
        validator.validate(value)
        assert automaton.accepts(compact(value)), value
    assert not [value for value in refused if automaton.accepts(compact(value))]


def test_a_schema_that_only_undeclared_properties_satisfy_is_read_as_written() -> None:
    schema = {**an_object("a"), "allOf": [{"not": {"maxProperties": 1}}]}
    automaton = compile_schema(schema, additional_properties="declared")
    assert automaton.accepts(b'{"a":1,"b":2}') and not automaton.accepts(b'{"a":1}')


CLOSED_BY_LLGUIDANCE_TOO = (
    "an object has its own",
    "no property is declared",
    "a dictionary is open",
    "a schema is said",
    "an alternative is null",
    "an alternative is a dictionary",
    "members of a dictionary",
)


@pytest.mark.parametrize("name", CLOSED_BY_LLGUIDANCE_TOO)
def test_llguidance_forbids_undeclared_properties_where_one_subschema_declares_all(name: str) -> None:
    schema, allowed, refused = deepcopy(CASES[name])
    forbid_undeclared(schema)
    peer = Peer(schema)
    assert not peer.error and all(peer.accepts(compact(value)) for value in allowed)
    assert not [value for value in refused if peer.accepts(compact(value))]


CHANGED_FOR_LLGUIDANCE = (*CLOSED_BY_LLGUIDANCE_TOO, "any of", "members and items")


@pytest.mark.parametrize("name", [name for name in CASES if name not in CHANGED_FOR_LLGUIDANCE])
def test_for_llguidance_objects_that_several_subschemas_constrain_stay_as_written(name: str) -> None:
    schema = CASES[name][0]
    changed = deepcopy(schema)
    forbid_undeclared(changed)
    assert changed == schema


def test_for_llguidance_a_subschema_is_closed_if_every_reference_to_it_stands_alone() -> None:
    schemas = {"alone": an_object("a"), "joined": an_object("b")}
    members = {
        "x": {"anyOf": [{"$ref": "#/$defs/alone"}, {"type": "null"}]},
        "y": {"$ref": "#/$defs/joined"},
        "z": {"allOf": [{"$ref": "#/$defs/joined"}, an_object("c")]},
    }
    schema: Any = {"properties": members, "$defs": schemas}
    forbid_undeclared(schema)
    closed = [fields for fields in (schema, *schemas.values()) if "additionalProperties" in fields]
    assert closed == [schema, schemas["alone"]]
