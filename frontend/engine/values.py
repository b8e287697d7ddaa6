"""Converts Python values to the types of a request's fields, with errors that name the argument."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Raw

from ...runtime.errors import RequestError
from ..core.type_errors import type_error

T = TypeVar("T")


def convert(value: object, kind: type[T], param: str) -> T:
    """Converts a value called `param` (empty: a dict of arguments). Raises `RequestError` if that fails."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise type_error(error, _as_json(value), param) from error


def encode_json(value: object, param: str) -> Raw:
    """The value as JSON. Raises `RequestError` naming `param` if it can't be written."""
    try:
        return Raw(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError) as error:
        message = f"{param} can't be written as JSON: {error}."
        raise RequestError(message, param=param, code="invalid_value") from None


def check_characters(name: str, value: object) -> None:
    """Raises `RequestError` for text with half of a surrogate pair, which is no character."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        half, place = error.object[error.start], error.start
        message = (
            f"{name} has {half!r} at character {place} of {reprlib.repr(error.object)}: half of a surrogate "
            "pair is no character. Remove it, or decode the text with errors='replace'."
        )
        raise RequestError(message, param=name, code="invalid_value") from None
    except (TypeError, ValueError, OverflowError):
        return  # other checks refuse such a value


def _as_json(value: object) -> Mapping[str, Raw]:
    """The JSON of each field of a dict, or of the value itself under an empty name."""
    fields = value if isinstance(value, dict) else {"": value}
    return {str(name): _raw(each) for name, each in fields.items()}


def _raw(value: object) -> Raw:
    try:
        return Raw(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError):
        return Raw(b"")  # not JSON: the error shows only the value's type
