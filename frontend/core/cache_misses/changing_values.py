"""Recognizes lines that differ only in values such as a time, a date or an id."""

from __future__ import annotations

import re
from typing import Literal

from ..text.prompt_rules import DATE, DATED_CLOCK

ValueKind = Literal["billing_header", "uuid", "time", "date", "id", "several"]

PATTERNS: dict[ValueKind, re.Pattern[str]] = {
    "billing_header": re.compile(r"x-anthropic-billing-header:[^\n]*"),
    "uuid": re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"),
    "time": re.compile(rf"\b{DATED_CLOCK}|\b1[5-9]\d{{8}}(?:\d{{3}}|\.\d+)?\b"),
    "date": re.compile(rf"\b{DATE}\b"),
    "id": re.compile(
        r"\b(?:req|request|session|sess|trace|span|run|msg|call|toolu|user|chatcmpl|resp|id)[_-][A-Za-z0-9_-]{6,}"
        r"|\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b"
    ),
}


def find_changing_value(line: str, earlier: str) -> ValueKind | None:
    """The kind of value in which two lines differ. None if they also differ elsewhere, or are equal."""
    if line == earlier:
        return None
    for kind, pattern in PATTERNS.items():
        if pattern.sub(kind, line) == pattern.sub(kind, earlier):
            return kind
    return "several" if _mask(line) == _mask(earlier) else None


def _mask(line: str) -> str:
    for kind, pattern in PATTERNS.items():
        line = pattern.sub(kind, line)
    return line
