"""Reads the input of a custom tool out of the JSON of its call while the JSON arrives."""

from __future__ import annotations

import json
import re

_BEFORE = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_TEXT = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*', re.DOTALL)
_HIGH_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")


class InputText:
    """The string `input` of an object that has nothing else. Text after the string is left out."""

    def __init__(self) -> None:
        self._held = ""
        self._has_begun = False

    def feed(self, fragment: str) -> str:
        """The characters of the input that are complete."""
        self._held += fragment
        if not self._has_begun:
            found = _BEFORE.match(self._held)
            if found is None:
                return ""
            self._has_begun = True
            self._held = self._held[found.end() :]
        match = _TEXT.match(self._held)
        assert match is not None, "the pattern matches the empty text"
        written = match[0]
        half = _HIGH_HALF.search(written)
        if half is not None and not self._held.startswith('"', match.end()):
            written = written[: half.start()]
        self._held = self._held[len(written) :]
        text: str = json.loads(f'"{written}"', strict=False)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
