"""Prevents a client's text from forming special tokens, such as those that begin and end a turn."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from .cut_points import make_trie_pattern
from .tokenizer import CONTROL_MARK

# Clients may send reasoning back as they received it, because it can't begin a turn.
_REASONING = frozenset(("<think>", "</think>", "[THINK]", "[/THINK]"))


class ControlTexts:
    """Puts a `CONTROL_MARK` into text that spells a special token, or begins or ends with a part of one."""

    def __init__(self, special_texts: Iterable[str]) -> None:
        texts = sorted(text for text in set(special_texts) - _REASONING if len(text) > 1)
        self._beginnings = sorted({text[:2] for text in texts})
        self._endings = sorted({text[-2:] for text in texts})
        self._first_parts = {text[:end] for text in texts for end in range(2, len(text))}
        self._last_parts = {text[start:] for text in texts for start in range(1, len(text) - 1)}
        self._middles = "\0".join(text[1:-1] for text in texts)
        self._reach = max(map(len, texts), default=0)
        self._pattern = re.compile(_make_pattern(texts))

    def guard(self, text: str) -> str:
        """The text with marks where it could form special tokens. Most texts need none and stay unchanged."""
        return _put_marks(text, self.find_places(text))

    def guard_word(self, text: str) -> str:
        """Like `guard`, also for a text that templates may put between the parts of a special token."""
        return _put_marks(text, self.find_places(text, may_be_inside=True))

    def find_places(self, text: str, *, may_be_inside: bool = False) -> list[int]:
        """The positions of the marks, in characters, in order."""
        found = []
        if self._begins_inside(text) or (may_be_inside and text and text in self._middles):
            found.append(0)
        if any(beginning in text for beginning in self._beginnings):
            found += [match.end() for match in self._pattern.finditer(text)]
            if self._ends_inside(text):
                found.append(len(text))
        return found

    def _begins_inside(self, text: str) -> bool:
        head = text[: self._reach]
        return any(
            head[: place + 2] in self._last_parts
            for ending in self._endings
            for place in _find_all(head, ending)
        )

    def _ends_inside(self, text: str) -> bool:
        tail = text[-self._reach :]
        return any(
            tail[place:] in self._first_parts
            for beginning in self._beginnings
            for place in _find_all(tail, beginning)
        )


def _put_marks(text: str, places: list[int]) -> str:
    if not places:
        return text
    borders = [0, *places, len(text)]
    return CONTROL_MARK.join(text[start:end] for start, end in pairwise(borders))


def _find_all(text: str, part: str) -> Iterable[int]:
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)


def _make_pattern(texts: list[str]) -> str:
    """A pattern that matches the first character of each occurrence of a text, also of overlapping ones."""
    rests: dict[str, list[str]] = {}
    for text in texts:
        rests.setdefault(text[0], []).append(text[1:])
    patterns = (f"{re.escape(first)}(?={make_trie_pattern(rest)})" for first, rest in rests.items())
    return "|".join(patterns) or "(?!)"
