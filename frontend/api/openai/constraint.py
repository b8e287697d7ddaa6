"""The fields that constrain a reply. Each of them becomes a `GrammarSpec`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from ....runtime.messages import GrammarSpec
from ...core.grammar_fields import (
    choice_spec,
    grammar_spec,
    is_null,
    object_spec,
    one_spec,
    regex_spec,
    schema_spec,
    spaced_as,
    text_specs,
)
from ...core.validation import check_word, invalid_field, missing_field
from ...http.field_names import NOTHING
from .protocol import FORMAT_TYPES, GenerationFields, JsonSchemaFormat, ResponseFormat, StructuredOutputs
from .structural_tag import structural_tag

_SCHEMAS, _TAGS = ("json_schema", "schema"), ("format", "structures", "triggers")
_FIELDS_BY_TYPE: dict[str, tuple[str, ...]] = {
    "text": (),
    "json_object": ("schema",),
    "json_schema": _SCHEMAS,
    "structural_tag": _TAGS,
}
_EMPTY = (*map(Raw, NOTHING), None, JsonSchemaFormat())


def constraint(request: GenerationFields) -> GrammarSpec | None:
    """The constraint on the reply, or None. Raises `RequestError` if two fields ask for different ones."""
    spec = one_spec(
        (
            *_response_format(request.response_format),
            _structured_outputs(request.structured_outputs),
            *text_specs(request),
            regex_spec(request.guided_regex, "guided_regex"),
            choice_spec(request.guided_choice, "guided_choice"),
            schema_spec(request.guided_json, "guided_json"),
            grammar_spec(request.guided_grammar, "guided_grammar"),
            schema_spec(request.json_schema, "json_schema"),
            grammar_spec(request.ebnf, "ebnf"),
        )
    )
    return spaced_as(spec, request.guided_whitespace_pattern, "guided_whitespace_pattern")


def _response_format(wanted: ResponseFormat | None) -> Iterable[GrammarSpec | None]:
    """The constraints in `response_format`: two of its fields may have a schema."""
    if wanted is None:
        return ()
    check_word("response_format.type", wanted.type, FORMAT_TYPES)
    _check_type(wanted)
    schema = schema_spec(wanted.schema, "response_format.schema")
    match wanted.type:
        case "json_schema":
            return _named_schema(wanted.json_schema, is_needed=schema is None), schema
        case "json_object":
            return (schema or object_spec(True, "response_format"),)
        case "structural_tag":
            parts = {name: getattr(wanted, name) for name in _TAGS}
            return (structural_tag(Raw(msgspec.json.encode(parts)), "response_format"),)
    return ()


def _check_type(wanted: ResponseFormat) -> None:
    """Raises `RequestError` for a constraint that the type leaves unused."""
    for name in _SCHEMAS + _TAGS:
        if name not in _FIELDS_BY_TYPE[wanted.type] and getattr(wanted, name) not in _EMPTY:
            param = f"response_format.{name}"
            right = "structural_tag" if name in _TAGS else "json_schema"
            raise invalid_field(
                param,
                f"has no effect, as response_format.type is {wanted.type!r}: make the type "
                f"{right!r}, or leave {name} out",
            )


def _named_schema(wanted: JsonSchemaFormat | None, *, is_needed: bool) -> GrammarSpec | None:
    """The schema in OpenAI's `json_schema`, an object with a name and a schema."""
    if wanted is None:
        if is_needed:
            raise missing_field("response_format.json_schema")
        return None
    if not wanted.name:
        raise missing_field("response_format.json_schema.name")
    schema = schema_spec(wanted.schema, "response_format.json_schema.schema")
    if schema is None:
        raise missing_field("response_format.json_schema.schema")
    return schema


def _structured_outputs(wanted: StructuredOutputs | None) -> GrammarSpec | None:
    if wanted is None:
        return None
    tag = wanted.structural_tag
    found = (
        schema_spec(wanted.json, "structured_outputs.json"),
        regex_spec(wanted.regex, "structured_outputs.regex"),
        choice_spec(wanted.choice, "structured_outputs.choice"),
        grammar_spec(wanted.grammar, "structured_outputs.grammar"),
        object_spec(wanted.json_object, "structured_outputs.json_object"),
        None if is_null(tag) else structural_tag(tag, "structured_outputs.structural_tag"),
    )
    specs = [spec for spec in found if spec is not None]
    if len(specs) != 1:
        raise invalid_field(
            "structured_outputs",
            f"has {len(specs)} of json, regex, choice, grammar, json_object and "
            "structural_tag, but must have exactly one",
        )
    spec = specs[0]
    if wanted.disable_additional_properties:
        spec = msgspec.structs.replace(spec, additional_properties="declared")
    pattern = "" if wanted.disable_any_whitespace else wanted.whitespace_pattern
    return spaced_as(spec, pattern, "structured_outputs.whitespace_pattern")
