"""Removes control characters, which a terminal takes as commands."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def without_controls(text: str) -> str:
    """The text without control characters other than tabs and line feeds.

    With them a reply could set the clipboard, clear the screen or have the terminal type an answer.
    """
    return _CONTROLS.sub("", text)
