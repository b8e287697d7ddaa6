"""JSON schema's format `regex`: texts that are surely regexes of ECMA-262 with its flag `u`.

The set of all regexes is not regular. Here groups nest a few levels, the ends of a range are compared by
kinds of characters, and no group is named or referred to.
"""

from __future__ import annotations

from functools import cache
from string import punctuation

import numpy as np
from numpy.typing import NDArray

from ...regex.dfa import DEAD, LAST_CODE_POINT, REJECT, Dfa, minimal
from ...regex.regex_dfa import matching

_NESTS = ("", "g", "gg", "ggg", "gggg", "a", "ag")
"""The groups and assertions that may be open at once, outermost first."""
_REST = {"g": "\ud800", "a": "\ud801"}  # stands for the rest of one up to its end; no text has surrogates
_NO_TEXT = r"\ud800-\udfff"
_STARTS = (
    (0x20, 0x21), (0x30, 0x31), (0x32, 0x38), (0x41, 0x41), (0x61, 0x61),
    (0x80, 0xEF), (0xF0, 0x42E), (0x42F, 0x44E), (0x44F, 0x9EFF),
)  # fmt: skip
"""If a range starts with one of these code points, its end is beyond all of them."""
_APART = ((0x2D, 0x2D), (0x5C, 0x5D), (0xD800, 0xDFFF))  # code points that stand for themselves in no class
_HEX = "[0-9A-Fa-f]"
_CATEGORY = "L[ul]?|M|Nd?|P[cds]?|S[c]?|Zs?|Cc?"
_MANY = rf"[dDsSwW]|[pP]\{{(?:{_CATEGORY})\}}"
_ONE = rf"[fnrtv]|x{_HEX}{{2}}|u{_HEX}{{4}}|[!-/:-@\[-`{{-~]"
_COUNT = r"(?:0|[1-9]\d{0,3})"


@cache
def _numbers(first: int, last: int, width: int, digits: str) -> str:
    """A regex of the numbers from `first` to `last` with `width` digits."""
    if not width:
        return ""
    unit = len(digits) ** (width - 1)
    starts = range(first - first % unit, last + 1, unit)
    ways: dict[str, str] = {}
    for start in starts:
        rest = _numbers(max(first - start, 0), min(last - start, unit - 1), width - 1, digits)
        ways[rest] = ways.get(rest, "") + digits[start // unit]
    return "(?:" + "|".join(f"{_digit(leading)}{rest}" for rest, leading in ways.items()) + ")"


def _digit(digits: str) -> str:
    return f"[{digits}{digits.upper()}]" if digits.upper() != digits else f"[{digits}]"


def _repetition() -> str:
    """A regex of {n,m}, with at most two digits in n."""
    pairs = []
    for least in range(100):
        width = len(str(least))
        pairs.append(
            rf"{least},(?:{_numbers(least, 10**width - 1, width, '0123456789')}|[1-9]\d{{{width},3}})"
        )
    return rf"\{{(?:{_COUNT},?|{'|'.join(pairs)})\}}"


def _member(first: int, last: int) -> str:
    """A regex of one of these code points in a class, escaped or not."""
    marks = "".join(rf"\x{ord(mark):02x}" for mark in punctuation if first <= ord(mark) <= last)
    ways = [_bare(first, last)]
    if marks:
        ways.append(rf"\\[{marks}]")
    if first < 0x100:
        ways.append(r"\\x" + _numbers(first, min(last, 0xFF), 2, "0123456789abcdef"))
    ways.append(r"\\u" + _numbers(first, min(last, 0xFFFF), 4, "0123456789abcdef"))
    return f"(?:{'|'.join(ways)})"


def _bare(first: int, last: int) -> str:
    spans = []
    for low, high in (*_APART, (last + 1, last + 1)):
        if first < low and first <= last:
            spans.append(rf"\U{first:08x}-\U{min(low - 1, last):08x}")
        first = max(first, high + 1)
    return f"[{''.join(spans)}]"


def _level() -> str:
    ranges = "|".join(f"{_member(*start)}-{_member(start[1] + 1, LAST_CODE_POINT)}" for start in _STARTS)
    single = rf"[^\\\]\-{_NO_TEXT}]|\\(?:b|{_ONE}|{_MANY})"
    characters = rf"\[[\^-]?(?:{ranges}|{single})*-?\]"
    atom = rf"[^\^$\\.*+?()\[\]{{}}|{_NO_TEXT}]|\.|\\(?:{_ONE}|{_MANY})|{characters}|\((?:\?:)?{_REST['g']}"
    assertion = rf"[\^$]|\\[bB]|\(\?<?[=!]{_REST['a']}"
    return rf"(?:\||{assertion}|(?:{atom})(?:(?:[*+?]|{_repetition()})\??)?)*"


@cache
def regexes() -> Dfa:
    """The automaton: for each nest a copy of what may stand between its brackets."""
    level = matching(_level())
    transitions = np.concatenate([_copy(level, nest) for nest in _NESTS])
    labels = np.full(len(transitions), REJECT, np.int32)
    labels[: len(level.labels)] = level.labels
    first = _column(level, "\x7f")  # classes with long byte forms come first, as fingerprints have 64 classes
    classes = (level.class_of_cut - first) % transitions.shape[1]
    return minimal(Dfa(level.cuts, classes, np.roll(transitions, -first, axis=1), labels))


def _copy(level: Dfa, nest: str) -> NDArray[np.int32]:
    """The states in a nest, numbered among all."""
    own = _closed(level, nest)
    for kind, rest in _REST.items():
        if nest + kind in _NESTS:
            inner = _closed(level, nest + kind)[0]
            opens = level.transitions[:, _column(level, rest)] >= 0
            own[opens] = np.maximum(own[opens], inner)  # at most one of the two is alive
    return own


def _closed(level: Dfa, nest: str) -> NDArray[np.int32]:
    """The states of a nest that begin no inner one."""
    first = _NESTS.index(nest) * len(level.labels)
    own = np.where(level.transitions >= 0, level.transitions + first, DEAD).astype(np.int32)
    own[:, [_column(level, rest) for rest in _REST.values()]] = DEAD
    if nest:
        own[level.labels >= 0, _column(level, ")")] = _behind(level, nest)
    return own


def _behind(level: Dfa, nest: str) -> int:
    """The state that a nest's last ) leads to."""
    states = level.transitions[:, _column(level, _REST[nest[-1]])]
    return int(_NESTS.index(nest[:-1]) * len(states) + states.max())


def _column(dfa: Dfa, character: str) -> int:
    return int(dfa.class_of_cut[np.searchsorted(dfa.cuts, ord(character), "right") - 1])
