"""Choices for servers that constrain replies by JSON schemas alone: an object that has the choice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from .errors import BackendError


class _Chosen(msgspec.Struct):
    choice: str


def choice_schema(choices: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"choice": {"type": "string", "enum": list(choices)}},
        "required": ["choice"],
        "additionalProperties": False,
    }


def most_tokens(choices: Sequence[str]) -> int:
    """The most tokens that the object with one of the choices needs. A token is at least one byte of JSON,
    which is longest if it is indented and escapes all characters outside of ASCII."""
    return max((len(json.dumps({"choice": choice}, indent=4)) for choice in choices), default=0)


def read_choice(text: str, choices: Sequence[str]) -> str:
    """The choice in a reply. Raises `BackendError` if it has none of them."""
    with contextlib.suppress(msgspec.DecodeError):
        if (choice := msgspec.json.decode(text, type=_Chosen).choice) in choices:
            return choice
    raise BackendError(
        f"the server replies {text[:60]!r} though it is asked for a JSON object with one of the choices: it "
        "does not enforce the schema in response_format, so it can't be used for choices."
    )
