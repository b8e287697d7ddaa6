"""Ollama's `keep_alive`: how long a conversation stays cached after a request, and how it is recognized."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from ...core.validation import invalid_field
from .protocol import ChatRequest, GenerateRequest, Message

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)
_LONGEST = 64  # maximum characters of a duration


def keep_alive_seconds(value: float | str | None) -> float | None:
    """The seconds: 0 for no time, infinity for no limit, None without the field.

    A number is in seconds, and a text is a duration such as "5m" or "1h30m"; a negative one has no limit.
    Raises `RequestError`.
    """
    if value is None:
        return None
    seconds = _seconds(value) if isinstance(value, str) else value
    if seconds is None or math.isnan(seconds):
        raise invalid_field(
            "keep_alive",
            f"is {str(value)[:_LONGEST]!r}, but must be a number of seconds or a duration such as "
            "'5m', '1h30m' or '-1m' (no limit)",
        )
    return math.inf if seconds < 0 else seconds


def conversation_key(request: ChatRequest | GenerateRequest) -> str:
    """The key of a conversation's leases: the same in each of its turns, as it depends on their beginning."""
    if isinstance(request, ChatRequest):
        begin: Sequence[object] = _to_first_question(request.messages or ())
    else:
        begin = (request.system, request.prompt)
    return sha256(msgspec.json.encode(begin)).hexdigest()[:32]


def _to_first_question(messages: Sequence[Message]) -> Sequence[Message]:
    for index, message in enumerate(messages):
        if message.role == "user":
            return messages[: index + 1]
    return messages


def _seconds(text: str) -> float | None:
    """The seconds of a duration as Go writes it, or of a bare number; None for another text."""
    if len(text) > _LONGEST:
        return None
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    found = _PART.findall(parts)
    if not found or "".join(number + unit for number, unit in found) != parts:
        return None
    seconds = sum(float(number) * _UNITS[unit] for number, unit in found)
    return -seconds if text.startswith("-") else seconds
