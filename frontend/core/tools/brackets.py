"""Tracks brackets and strings in text that arrives in pieces."""

from __future__ import annotations


class BracketScanner:
    """Works for JSON and Python literals: brackets inside `quotes` don't count, and backslashes escape."""

    def __init__(self, quotes: str) -> None:
        self._quotes = quotes
        self._quote = ""
        self._escaped = False
        self.depth = 0

    @property
    def in_string(self) -> bool:
        return bool(self._quote)

    def closes(self, character: str) -> bool:
        """Takes a character; True if it closes the outermost bracket."""
        if self._escaped:
            self._escaped = False
        elif self._quote:
            self._escaped = character == "\\"
            self._quote = "" if character == self._quote else self._quote
        elif character in self._quotes:
            self._quote = character
        elif character in "{[(":
            self.depth += 1
        elif character in "}])":
            self.depth -= 1
            return self.depth <= 0
        return False
