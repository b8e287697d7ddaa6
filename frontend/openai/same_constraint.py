"""Decides whether two fields ask for the same constraint: clients send one under several names."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from ...runtime.messages import GrammarSpec

_ANY_OBJECT = '{"type":"object"}'


def _number(text: str) -> float | int:
    """1.0 and 1 are the same number in JSON."""
    value = float(text)
    return int(value) if value.is_integer() else value


_json = msgspec.json.Decoder(float_hook=_number)


def all_same(specs: Iterable[GrammarSpec]) -> bool:
    return len(set(map(_meaning, specs))) <= 1


def _meaning(spec: GrammarSpec) -> tuple[str, bytes]:
    """Equal for specs whose texts show that they allow the same replies: JSON is compared by value, a choice
    as a set of texts, all else letter by letter."""
    match spec.kind:
        case "json_object":
            return "json_schema", _ANY_OBJECT.encode()
        case "json_schema" | "structural_tag":
            value = _json.decode(spec.text)
            return spec.kind, json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        case "choice":
            texts: list[str] = msgspec.json.decode(spec.text, type=list[str])
            return "choice", msgspec.json.encode(sorted(set(texts)))
    return spec.kind, spec.text.encode()
