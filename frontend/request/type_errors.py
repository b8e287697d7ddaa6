"""Turns msgspec's type errors into sentences that name the field, its value and the allowed types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw

from ...runtime.errors import RequestError
from .validation import missing_field

SHOWN_CHARACTERS = 60
_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "object": "an object",
    "str": "a string",
}
_path = re.compile(r"^(?P<message>.*) - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`$", re.DOTALL)
_step = re.compile(r"[^.\[\]]+")
_missing = re.compile(r"missing required field `(?P<field>[^`]*)`")
_mismatch = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`")


def type_error(error: msgspec.ValidationError, fields: Mapping[str, Raw], whole: str = "") -> RequestError:
    """`fields` are those of the value at fault; `whole` is its name, empty for a request's body."""
    text = str(error)
    found = _path.match(text)
    message, inner = (found["message"], found["path"]) if found else (text, "")
    path = f"{whole}.{inner}".rstrip(".").replace(".[", "[") if whole else inner
    if missing := _missing.search(message):
        path = f"{path}.{missing['field']}" if path else missing["field"]
        parent = _value_at(inner, fields) if inner else fields
        return missing_field(path, parent if isinstance(parent, Mapping) else ())
    if message == "Number out of range":
        message = f"{path} is too large a number."
    elif mismatch := _mismatch.search(message):
        is_key = found is not None and found["key"] is not None
        subject = f"A key of {path}" if is_key else path
        value = (None if is_key else _shown(inner, fields)) or in_words(mismatch["got"])
        message = f"{subject} is {value}, but must be {in_words(mismatch['wanted'])}."
    else:
        message = f"{path or 'body'}: {message[:1].lower() + message[1:]}."
    return RequestError(message, param=path or None, code="invalid_type")


def in_words(types: str) -> str:
    """One type or several. Null counts as an absent field, so it is not named."""
    names = [name for name in types.split(" | ") if name != "null" or types == name]
    return " or ".join(_WORDS.get(name, name) for name in names)


def _value_at(path: str, fields: Mapping[str, Raw]) -> object:
    """The value at a path; None if it can't be found."""
    first, *steps = _step.findall(path) or [""]
    try:
        value = msgspec.json.decode(fields[first])
        for step in steps:
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (LookupError, ValueError, TypeError):  # the path leaves out a key, or what follows is no JSON
        return None
    return value


def _shown(path: str, fields: Mapping[str, Raw]) -> str | None:
    """The value at a path as JSON; None if it is a list or an object, or can't be found."""
    value = _value_at(path, fields)
    if value is None or isinstance(value, list | dict):
        return None
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
