"""Turns msgspec's type errors into sentences that name the field, its value and the allowed types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw

SHOWN_CHARACTERS = 60
ANY_KEY = "..."  # stands for the key of a dict in msgspec's paths
_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "object": "an object",
    "str": "a string",
}
_place = re.compile(r"^(?P<message>.*) - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`$", re.DOTALL)
_step = re.compile(r"\.{3}|[^.\[\]]+")
_missing = re.compile(r"missing required field `(?P<field>[^`]*)`")
_mismatch = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`")


class TypeMismatch(NamedTuple):
    """The parts of msgspec's error for a value of the wrong type."""

    message: str
    """the text of msgspec's error without the path"""
    path: str
    """where the value is within the decoded value; empty if it is the decoded value"""
    is_key: bool
    """whether a key of the object at the path is wrong, rather than the object"""

    @classmethod
    def of(cls, error: msgspec.ValidationError) -> TypeMismatch:
        text = str(error)
        found = _place.match(text)
        return (
            cls(found["message"], found["path"], found["key"] is not None) if found else cls(text, "", False)
        )

    @property
    def missing(self) -> str | None:
        """The name of a field that the object at the path lacks."""
        found = _missing.search(self.message)
        return found["field"] if found else None

    def sentence(self, name: str, fields: Mapping[str, Raw], whole: str) -> str:
        """Returns a sentence with the field, its value and the allowed types.

        name: what the sentence calls the value, or empty
        fields: the fields of the decoded value, which the sentence calls `whole`
        """
        if self.message == "Number out of range":
            return f"{name or whole} is too large a number."
        mismatch = _mismatch.search(self.message)
        if mismatch is None:
            return f"{name or whole}: {self.message[:1].lower() + self.message[1:]}."
        value = (None if self.is_key else _shown(self.path, fields)) or in_words(mismatch["got"])
        subject = f"A key of {name or whole}" if self.is_key else name or whole
        return f"{subject} is {value}, but must be {in_words(mismatch['wanted'])}."


def in_words(types: str) -> str:
    """Writes types as msgspec names them, such as `int | null`, in words. Leaves out null beside other types,
    because a null field counts as absent."""
    names = [name for name in types.split(" | ") if name != "null" or types == name]
    return " or ".join(_WORDS.get(name, name) for name in names)


def value_at(path: str, fields: Mapping[str, Raw]) -> object:
    """The value at a path; None if it can't be found."""
    first, *steps = _step.findall(path) or [""]
    try:
        value = msgspec.json.decode(fields[first])
        for step in steps:
            if step == ANY_KEY:
                [value] = value.values()
            else:
                value = value[int(step)] if isinstance(value, list) else value[step]
    except (LookupError, ValueError, TypeError, AttributeError, msgspec.DecodeError):
        return None  # `ANY_KEY` stands for one of several keys, or the field is not valid JSON
    return value


def _shown(path: str, fields: Mapping[str, Raw]) -> str | None:
    """The value at a path as JSON; None if it is a list or an object, or can't be found."""
    value = value_at(path, fields)
    if value is None or isinstance(value, list | dict):
        return None
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
