"""Keeps control characters from the terminal, and tells input that is not UTF-8."""

from __future__ import annotations

import re
import sys
from io import TextIOWrapper

NOT_UTF8 = "this line is not UTF-8, so it was not sent"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def without_controls(text: str) -> str:
    """The text without control characters other than tabs and line feeds.

    With them a reply could set the clipboard, clear the screen or have the terminal type an answer.
    """
    return _CONTROLS.sub("", text)


def read_utf8() -> None:
    """Makes Python read standard input as UTF-8, whatever the locale. Other bytes raise no error, so each
    line must be checked by `is_utf8`."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
