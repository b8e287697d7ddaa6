"""Checks of known fields that have no effect, or that only a few values are allowed for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from ...runtime.errors import RequestError
from ...runtime.type_mismatch import SHOWN_CHARACTERS
from .body_kind import FieldCheck

READ_BYTES = 400  # of a value, which may be as long as the body; the values in the tables are shorter
_NOTHING = ("[]", "{}", '""', "false")  # values that ask for nothing


class FixedField(NamedTuple):
    """`values` are the JSON texts that ask for the server's usual behaviour."""

    values: tuple[str, ...] = ()
    instead: str = "Leave it out."


def checks_of(fixed: Mapping[str, FixedField], hints: Mapping[str, FixedField]) -> dict[str, FieldCheck]:
    """The checks of fields that are refused with other values, and of hints, which a server may ignore."""
    return {
        **{name: partial(_check_fixed, name, field) for name, field in fixed.items()},
        **{name: partial(_check_hint, field) for name, field in hints.items()},
    }


def without_effect(value: bytes) -> None:
    """Such a field needs no warning."""


def _check_hint(hint: FixedField, value: bytes) -> str | None:
    """The advice to log if the hint asks for more than the server's usual behaviour."""
    return None if _text(value) in ("null", *hint.values) else hint.instead


def _check_fixed(name: str, field: FixedField, value: bytes) -> None:
    """Raises a `RequestError` that names the field, its value and what to use."""
    values, instead = field
    text = _text(value)
    if text == "null" or text.replace(" ", "") in values:
        return
    shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
    served = [value for value in values if value not in _NOTHING]
    problem = f"but only {' or '.join(served)} is supported" if served else "which is not supported"
    raise RequestError(f"{name} is {shown}, {problem}. {instead}", param=name, code="unsupported_parameter")


def _text(value: bytes) -> str:
    return " ".join(value[:READ_BYTES].decode(errors="replace").split())
