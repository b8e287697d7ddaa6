"""A part of a text with its ids, and the places where both can be cut."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ....runtime.messages import Tokens


class Cut(NamedTuple):
    """A place where a text can be cut: the number of bytes and of tokens before it."""

    offset: int
    tokens: int


START = Cut(0, 0)


@dataclass(frozen=True)
class TokenizedText:
    """A text with its ids. `text` is UTF-8, `cuts` are some of the places where it can be cut, in order.

    `replies` are ranges of bytes, in order, whose ids the model produced.
    """

    text: bytes
    tokens: Tokens
    cuts: list[Cut] = field(default_factory=list)
    replies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def end(self) -> Cut:
        return Cut(len(self.text), len(self.tokens) // 4)

    @property
    def cost(self) -> int:
        """The approximate bytes of memory of the text. A pair of integers takes 120 bytes."""
        return len(self.text) + len(self.tokens) + 120 * (len(self.cuts) + len(self.replies))

    def before(self, cut: Cut) -> TokenizedText:
        offset = cut.offset
        return TokenizedText(
            self.text[:offset],
            self.tokens[: 4 * cut.tokens],
            self.cuts[: bisect_left(self.cuts, cut)],
            [(start, min(end, offset)) for start, end in self.replies if start < offset],
        )

    def after(self, cut: Cut) -> TokenizedText:
        offset = cut.offset
        return TokenizedText(
            self.text[offset:],
            self.tokens[4 * cut.tokens :],
            [Cut(each.offset - offset, each.tokens - cut.tokens) for each in self.cuts if each >= cut],
            [(max(start - offset, 0), end - offset) for start, end in self.replies if end > offset],
        )

    def __add__(self, other: TokenizedText) -> TokenizedText:
        offset = len(self.text)
        return TokenizedText(
            self.text + other.text,
            self.tokens + other.tokens,
            self.cuts + move_cuts(other.cuts, self.end),
            self.replies + [(start + offset, end + offset) for start, end in other.replies],
        )


def move_cuts(cuts: Iterable[Cut], by: Cut) -> list[Cut]:
    return [Cut(cut.offset + by.offset, cut.tokens + by.tokens) for cut in cuts]


def common_length(first: bytes, second: bytes, start: int = 0) -> int:
    """The number of bytes that `first` and `second[start:]` share at their beginnings."""
    if second.startswith(first, start):
        return len(first)
    equal, different = 0, min(len(first), len(second) - start) + 1
    while different - equal > 1:
        middle = (equal + different) // 2
        if first[equal:middle] == second[start + equal : start + middle]:
            equal = middle
        else:
            different = middle
    return equal
