"""The fields that constrain a reply. Each of them becomes a `GrammarSpec`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw

from ...runtime.errors import RequestError
from ...runtime.messages import GrammarSpec
from .protocol import GenerationFields, ResponseFormat, StructuredOutputs
from .structural_tag import structural_tag

_ANY_OBJECT = '{"type":"object"}'


def _number(text: str) -> float | int:
    """1.0 and 1 are the same number in JSON."""
    value = float(text)
    return int(value) if value.is_integer() else value


_schemas = msgspec.json.Decoder(float_hook=_number)


FIELDS = (
    "response_format",
    "structured_outputs",
    "regex",
    "guided_regex",
    "choice",
    "guided_choice",
    "json_schema",
    "guided_json",
    "grammar",
    "guided_grammar",
    "ebnf",
)
"""that say what a reply must match"""


def constraint(request: GenerationFields) -> GrammarSpec | None:
    """The constraint on the reply, or None. Raises `RequestError` if two fields ask for different ones."""
    specs = [spec for spec in _asked(request) if spec is not None]
    if len(specs) > 1 and not _all_same(specs):
        names = " and ".join(spec.param for spec in specs)
        raise RequestError(
            f"{names} can't be used together: give only one, or the same value in each.",
            param=specs[1].param,
            code="invalid_value",
        )
    return specs[0] if specs else None


def _asked(request: GenerationFields) -> Sequence[GrammarSpec | None]:
    return (
        _response_format(request.response_format),
        _structured_outputs(request.structured_outputs),
        _regex(request.regex, "regex"),
        _regex(request.guided_regex, "guided_regex"),
        _choice(request.choice, "choice"),
        _choice(request.guided_choice, "guided_choice"),
        _guided_json(request.guided_json, "guided_json"),
        _grammar(request.guided_grammar, "guided_grammar"),
        _guided_json(request.json_schema, "json_schema"),
        _grammar(request.grammar, "grammar"),
        _grammar(request.ebnf, "ebnf"),
    )


def _response_format(wanted: ResponseFormat | None) -> GrammarSpec | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        schema = _guided_json(wanted.schema, "response_format.schema")
        return schema or GrammarSpec("json_object", "", "response_format")
    if wanted.type == "structural_tag":
        parts = {"format": wanted.format, "structures": wanted.structures, "triggers": wanted.triggers}
        return structural_tag(Raw(msgspec.json.encode(parts)), "response_format")
    if wanted.type != "json_schema":
        raise RequestError(
            f"response_format.type is {wanted.type!r}, but must be 'text', 'json_object', 'json_schema' or "
            "'structural_tag'.",
            param="response_format.type",
            code="invalid_value",
        )
    if wanted.json_schema is None:
        raise _missing("response_format.json_schema")
    if not wanted.json_schema.name:
        raise _missing("response_format.json_schema.name")
    schema = _guided_json(wanted.json_schema.schema, "response_format.json_schema.schema")
    if schema is None:
        raise _missing("response_format.json_schema.schema")
    return schema


def _structured_outputs(wanted: StructuredOutputs | None) -> GrammarSpec | None:
    if wanted is None:
        return None
    for name in ("disable_additional_properties", "whitespace_pattern"):
        if getattr(wanted, name):
            param = f"structured_outputs.{name}"
            raise RequestError(
                f"{param} is not supported: leave it out.", param=param, code="unsupported_parameter"
            )
    found = [
        _guided_json(wanted.json, "structured_outputs.json"),
        _regex(wanted.regex, "structured_outputs.regex"),
        _choice(wanted.choice, "structured_outputs.choice"),
        _grammar(wanted.grammar, "structured_outputs.grammar"),
        GrammarSpec("json_object", "", "structured_outputs.json_object") if wanted.json_object else None,
        _structural_tag(wanted.structural_tag, "structured_outputs.structural_tag"),
    ]
    specs = [spec for spec in found if spec is not None]
    if len(specs) != 1:
        raise RequestError(
            f"structured_outputs has {len(specs)} of json, regex, choice, grammar, json_object and "
            "structural_tag, but must have exactly one.",
            param="structured_outputs",
            code="invalid_value",
        )
    return specs[0]


def _regex(pattern: str | None, param: str) -> GrammarSpec | None:
    return None if pattern is None else GrammarSpec("regex", pattern, param)


def _grammar(text: str | None, param: str) -> GrammarSpec | None:
    """A context-free grammar, Lark or GBNF."""
    return None if text is None else GrammarSpec("grammar", text, param)


def _choice(options: list[str] | None, param: str) -> GrammarSpec | None:
    if options is None:
        return None
    if not options or "" in options:
        problem = f"{param} must have at least one string, none of them empty."
        raise RequestError(problem, param=param, code="invalid_value")
    return GrammarSpec("choice", msgspec.json.encode(options).decode(), param)


def _structural_tag(value: Raw, param: str) -> GrammarSpec | None:
    return None if _is_null(value) else structural_tag(value, param)


def _guided_json(schema: Raw, param: str) -> GrammarSpec | None:
    """A schema as an object or as a string that holds JSON."""
    if _is_null(schema):
        return None
    return _json_schema(schema, param)


def _json_schema(schema: Raw, param: str) -> GrammarSpec:
    try:
        if bytes(schema).lstrip().startswith(b'"'):
            schema = Raw(msgspec.json.decode(schema, type=str).encode())
        decoded = msgspec.json.decode(schema)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{param} is not valid JSON: {error}", param=param, code="invalid_value") from None
    if not isinstance(decoded, dict | bool):
        raise RequestError(f"{param} must be a JSON schema: an object.", param=param, code="invalid_type")
    return GrammarSpec("json_schema", bytes(schema).decode(), param)


def _is_null(value: Raw) -> bool:
    return bytes(value).strip() == b"null"


def _missing(param: str) -> RequestError:
    return RequestError(f"The required field {param} is missing.", param=param, code="missing_field")


def _all_same(specs: Iterable[GrammarSpec]) -> bool:
    return len(set(map(_meaning, specs))) <= 1


def _meaning(spec: GrammarSpec) -> tuple[str, bytes]:
    """Equal for specs whose texts show that they allow the same replies: JSON is compared by value, a choice
    as a set of texts, all else letter by letter."""
    match spec.kind:
        case "json_object":
            return "json_schema", _ANY_OBJECT.encode()
        case "json_schema" | "structural_tag":
            value = _schemas.decode(spec.text)
            return spec.kind, json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        case "choice":
            texts: list[str] = msgspec.json.decode(spec.text, type=list[str])
            return "choice", msgspec.json.encode(sorted(set(texts)))
    return spec.kind, spec.text.encode()
