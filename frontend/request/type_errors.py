"""Turns msgspec's type errors into the errors of a request."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from ...runtime.errors import RequestError
from ...runtime.type_mismatch import TypeMismatch, value_at
from .validation import missing_field


def type_error(error: msgspec.ValidationError, fields: Mapping[str, Raw], whole: str = "") -> RequestError:
    """`fields` are those of the value at fault; `whole` is its name, empty for a request's body."""
    mismatch = TypeMismatch.of(error)
    inner = mismatch.path
    path = f"{whole}.{inner}".rstrip(".").replace(".[", "[") if whole else inner
    if missing := mismatch.missing:
        parent = value_at(inner, fields) if inner else fields
        path = f"{path}.{missing}" if path else missing
        return missing_field(path, parent if isinstance(parent, Mapping) else ())
    return RequestError(mismatch.sentence(path, fields, "body"), param=path or None, code="invalid_type")
