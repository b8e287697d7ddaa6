"""Turns msgspec's errors into the errors of a request."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw

from ...runtime.errors import RequestError
from ...runtime.type_mismatch import TypeMismatch, value_at
from .validation import missing_field

STEP_BYTES = 1024 * 1024  # bytes of a text that one step checks; no other thread runs during it
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_WHOLE_ESCAPES = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?=[^dD]|[dD][^89a-fA-F])|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*+", re.DOTALL
)


def type_error(error: msgspec.ValidationError, fields: Mapping[str, Raw], whole: str = "") -> RequestError:
    """The error of a request. `fields` are the fields of the value `whole` (empty: the request's body)."""
    mismatch = TypeMismatch.of(error)
    inner = mismatch.path
    path = f"{whole}.{inner}".rstrip(".").replace(".[", "[") if whole else inner
    if missing := mismatch.missing:
        parent = value_at(inner, fields) if inner else fields
        path = f"{path}.{missing}" if path else missing
        return missing_field(path, parent if isinstance(parent, Mapping) else ())
    return RequestError(mismatch.sentence(path, fields, "body"), param=path or None, code="invalid_type")


def json_mistake(text: bytes, error: Exception) -> str:
    """Says why msgspec can't decode a text. Names a lone surrogate, which msgspec's own error does not,
    and the byte at which a truncated text ends."""
    place = 0
    while (found := _WHOLE_ESCAPES.match(text, place, place + STEP_BYTES)) and found[0]:
        place = found.end()
    if (lone := _SURROGATE.match(text, place)) is None:
        is_truncated = str(error) == "Input data was truncated"
        return f"{error} (byte {len(text)}, where it ends)" if is_truncated else str(error)
    pair = f"{lone[0].decode()} at byte {place} is half of a surrogate pair"
    return f"{pair}. Write both halves, or the character itself"
