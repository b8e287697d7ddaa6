"""The constraint on a reply: the request's grammar with the fields that say how it is enforced."""

from __future__ import annotations

from typing import cast

import msgspec
from msgspec import Raw

from ...runtime.config import ServeConfig
from ...runtime.errors import RequestError
from ...runtime.messages import AdditionalProperties, GrammarSpec, PropertyOrder, Unenforced
from .fields import SamplingFields
from .text.reasoning import ReasoningFormat
from .tools.schema_keywords import meant_keyword
from .validation import invalid_field

_WITH_SCHEMAS = ("json_schema", "structural_tag")
_WITH_JSON = (*_WITH_SCHEMAS, "json_object")


def enforced_as_asked(
    spec: GrammarSpec | None, fields: SamplingFields, config: ServeConfig
) -> GrammarSpec | None:
    """The grammar with the fields that say how it is enforced. Raises `RequestError` if such a field has no
    use.

    Fields that are absent have the server's values.
    """
    if fields.complete_json and spec is None:
        raise _nothing_to_match("complete_json", "says what the reply must match")
    uses = (("additional_properties", "schema"), ("property_order", "any"), ("unenforced", "allow"))
    for name, value in uses:
        if getattr(fields, name) == value and (spec is None or spec.kind not in _WITH_SCHEMAS):
            raise _nothing_to_match(name, "has a JSON schema")
    if fields.whitespace is not None and (spec is None or spec.kind not in _WITH_JSON):
        raise _nothing_to_match("whitespace", "asks for JSON")
    if spec is None:
        return None
    unenforced = cast(Unenforced, fields.unenforced or config.unenforced)
    if unenforced == "refuse" and spec.misspelt:
        raise _misspelt(spec)
    return msgspec.structs.replace(
        spec,
        additional_properties=_additional_properties(fields.additional_properties, spec, config),
        property_order=cast(PropertyOrder, fields.property_order or "schema"),
        whitespace=fields.whitespace
        or (config.whitespace if spec.whitespace == "model" else spec.whitespace),
        unenforced=unenforced,
    )


def _additional_properties(asked: str | None, spec: GrammarSpec, config: ServeConfig) -> AdditionalProperties:
    """The request's own field, or else the field inside the constraint, or else the server's value."""
    inside = spec.additional_properties if spec.additional_properties == "declared" else None
    return cast(AdditionalProperties, asked or inside or config.additional_properties)


def after_reasoning(
    spec: GrammarSpec, format: ReasoningFormat, prompt: str, *, calls: bool = False
) -> GrammarSpec | None:
    """The grammar preceded by reasoning; None if the reply must begin with the constrained text.

    Reasoning comes first if the prompt has begun it, or if the model may reason and the grammar is JSON or
    has tool calls (`calls`), or if the model marks its answers too.
    """
    is_open = format.open_at_end_of(prompt)
    begins_otherwise = spec.kind in ("json_schema", "json_object") or calls or format.answer
    if not is_open and not (begins_otherwise and format.is_likely_after(prompt)):
        return None
    thinking = {"type": "thinking", "start": format.start, "end": format.end, "is_open": is_open}
    thinking |= {"then": format.then, "begin": "" if calls else format.answer}
    text = msgspec.json.encode({**thinking, "content": as_format(spec)}).decode()
    return msgspec.structs.replace(spec, kind="structural_tag", text=text)


def as_format(spec: GrammarSpec) -> Raw | dict[str, object]:
    """The grammar as a format of a structural tag."""
    match spec.kind:
        case "structural_tag":
            return Raw(spec.text.encode())
        case "json_schema" | "json_object":
            schema = Raw(spec.text.encode() if spec.kind == "json_schema" else b'{"type":"object"}')
            return {"type": "json_schema", "json_schema": schema}
        case "regex":
            return {"type": "regex", "pattern": spec.text}
        case "grammar":
            return {"type": "grammar", "grammar": spec.text}
        case "choice":
            values: list[str] = msgspec.json.decode(spec.text, type=list[str])
            return {"type": "or", "elements": [{"type": "const_string", "value": each} for each in values]}


def _misspelt(spec: GrammarSpec) -> RequestError:
    keyword, path = spec.misspelt[0]
    return RequestError(
        f"the schema's keyword {keyword!r} at {path} is unknown, so it can't be enforced: did you mean "
        f'{meant_keyword(keyword)!r}? Correct it, or send "unenforced": "allow".',
        param=spec.params.get(path.partition("#")[0], spec.param),
        code="invalid_grammar",
    )


def _nothing_to_match(name: str, needed: str) -> RequestError:
    return invalid_field(name, f"needs a response_format or another field that {needed}")
