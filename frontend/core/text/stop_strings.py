"""Finds stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple


class StopFound(NamedTuple):
    """`end` is where the stop string ends, in characters from the start of the text pushed last."""

    stop: str
    end: int


class StopMatcher:
    """The stop string that is complete first ends the text; if several end together, the longest.

    A Knuth-Morris-Pratt automaton follows each stop string, so a character costs amortised constant time for
    each stop string, however the text is split.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted({stop for stop in stops if stop}, key=len, reverse=True)
        self._failures = [_failure_table(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)

    @property
    def held(self) -> int:
        """Length of the text's longest suffix that could begin a stop string."""
        return max(self._matched, default=0)

    def push(self, text: str) -> StopFound | None:
        """The first stop string completed in `text`. Nothing may be pushed after one was found."""
        if not self.held and not any(stop[0] in text for stop in self._stops):
            return None
        for position, character in enumerate(text):
            for index, stop in enumerate(self._stops):
                self._advance(index, stop, character)
                if self._matched[index] == len(stop):
                    return StopFound(stop, position + 1)
        return None

    def _advance(self, index: int, stop: str, character: str) -> None:
        matched = self._matched[index]
        while matched and stop[matched] != character:
            matched = self._failures[index][matched]
        self._matched[index] = matched + (stop[matched] == character)


@lru_cache(1024)  # the choices of a request have the same stop strings
def _failure_table(pattern: str) -> list[int]:
    """`table[n]` is the length of the longest proper border of the pattern's first n characters."""
    table = [0, 0]
    for character in pattern[1:]:
        border = table[-1]
        while border and pattern[border] != character:
            border = table[border]
        table.append(border + (pattern[border] == character))
    return table
