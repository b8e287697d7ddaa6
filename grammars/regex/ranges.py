"""Sets of code points as ranges, among them ECMA-262's character classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

LAST_CODE_POINT = 0x10FFFF
Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""first and last code points of each range in rising order, with gaps between the ranges"""

DIGIT: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: Ranges = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
EVERYTHING: Ranges = ((0, LAST_CODE_POINT),)


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def invert(ranges: Ranges) -> Ranges:
    gaps: list[tuple[int, int]] = []
    after = 0
    for low, high in ranges:
        if low > after:
            gaps.append((after, low - 1))
        after = high + 1
    if after <= LAST_CODE_POINT:
        gaps.append((after, LAST_CODE_POINT))
    return tuple(gaps)
