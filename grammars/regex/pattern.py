"""Users' regexes in the anchor-free form that the byte automaton takes.

The pattern is parsed with Python's own parser and written out again in Rust's regex syntax (docs of
`regex-syntax`). Redundant anchors are dropped, classes become ASCII (as in ECMA-262), and an error names what
an automaton can't do.
"""

from __future__ import annotations

import json
import re
import re._constants as op
import re._parser as parser
from collections.abc import Sequence
from typing import Any

from ...runtime.grammar_spec import GrammarSpec
from ..errors import GrammarError
from .ecma import TOO_DEEP, shorten

_CLASSES = {
    op.CATEGORY_DIGIT: "0-9",
    op.CATEGORY_WORD: "0-9A-Za-z_",
    op.CATEGORY_SPACE: r" \t\n\r\f\x0b",
}
_NEGATED = {
    op.CATEGORY_NOT_DIGIT: op.CATEGORY_DIGIT,
    op.CATEGORY_NOT_WORD: op.CATEGORY_WORD,
    op.CATEGORY_NOT_SPACE: op.CATEGORY_SPACE,
}
_STARTS = {op.AT_BEGINNING, op.AT_BEGINNING_STRING}
_ENDS = {op.AT_END, op.AT_END_STRING}
_REFUSED = {
    op.GROUPREF: "a back-reference",
    op.GROUPREF_EXISTS: "a conditional group",
    op.ATOMIC_GROUP: "an atomic group (?>…)",
    op.POSSESSIVE_REPEAT: "a possessive quantifier",
}
_LOOK_AROUND = {
    (op.ASSERT, 1): "look-ahead (?=…)",
    (op.ASSERT, -1): "look-behind (?<=…)",
    (op.ASSERT_NOT, 1): "negative look-ahead (?!…)",
    (op.ASSERT_NOT, -1): "negative look-behind (?<!…)",
}
_MAX_REPEAT = 10_000
MAX_LENGTH = 1_000_000  # maximal characters that a regex may ask for; unbounded repetitions count once
_NO_PROPERTIES = (
    r"has a Unicode property \p, which is not supported: "
    "write its characters as a class, such as [A-Za-zÀ-ÖØ-öø-ɏ]"
)
_FLAGS = re.IGNORECASE | re.DOTALL | re.VERBOSE | re.ASCII
Item = tuple[Any, Any]


def read_regex(spec: GrammarSpec) -> str:
    """Reads a regex or a choice of strings as a regex without anchors. Raises GrammarError."""
    return without_anchors(spec.text) if spec.kind == "regex" else _choice_of(spec.text)


def _choice_of(text: str) -> str:
    """A regex for one of the strings in a JSON list. Raises GrammarError."""
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"choice is not valid JSON: {error}") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise GrammarError("choice must be a list of at least one string, none of them empty")
    return "|".join(literal(choice) for choice in choices)


def without_anchors(pattern: str) -> str:
    """The regex for whole texts with the same language: `^`, `$`, `\\A` and `\\Z` are allowed where they are
    redundant.

    Raises GrammarError with the name of a part that isn't regular or isn't supported.
    """
    try:
        parsed = parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        property_named = isinstance(error, re.error) and error.msg in (r"bad escape \p", r"bad escape \P")
        reason = _NO_PROPERTIES if property_named else f"is not a regex: {error}"
        if isinstance(error, RecursionError):
            reason = TOO_DEEP
        raise GrammarError(f"{shorten(pattern)} {reason}") from None
    if (length := _length(parsed)) > MAX_LENGTH:
        raise GrammarError(
            f"{shorten(pattern)} asks for up to {length:,} characters; the most is {MAX_LENGTH:,}"
        )
    flags = parsed.state.flags & ~re.UNICODE
    if flags & ~_FLAGS:
        raise GrammarError(f"{shorten(pattern)} uses a flag that is not supported; (?i), (?s) and (?x) are")
    return _Writer(pattern).sequence(list(parsed), flags, at_start=True, at_end=True)


def _length(part: Any) -> int:
    """The most characters that a part of a parsed pattern asks for; unbounded repetitions count once."""
    total = 0
    for kind, value in part:
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            least, most, inner = value
            times = least if most is parser.MAXREPEAT else most
            total += max(1, int(times)) * _length(inner)
        elif kind is op.SUBPATTERN:
            total += _length(value[-1])
        elif kind is op.BRANCH:
            total += sum(_length(branch) for branch in value[1])
        else:
            total += 1
    return total


def literal(text: str) -> str:
    """A regex for exactly `text`."""
    return "".join(_character(ord(character)) for character in text)


class _Writer:
    """Writes a parsed pattern in Rust's syntax. `at_start`, `at_end`: whether nothing comes before or after
    this part."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def sequence(self, items: Sequence[Item], flags: int, at_start: bool, at_end: bool) -> str:
        consuming = [position for position, item in enumerate(items) if item[0] is not op.AT]
        first, last = (consuming[0], consuming[-1]) if consuming else (len(items), -1)
        return "".join(
            self._item(item, flags, at_start and position <= first, at_end and position >= last)
            for position, item in enumerate(items)
        )

    def _item(self, item: Item, flags: int, at_start: bool, at_end: bool) -> str:
        kind, value = item
        if kind in _REFUSED:
            raise self._refusal(_REFUSED[kind])
        if kind in (op.ASSERT, op.ASSERT_NOT):
            raise self._refusal(_LOOK_AROUND[kind, value[0]])
        if kind is op.AT:
            return self._anchor(value, at_start, at_end)
        if kind is op.BRANCH:
            branches = [self.sequence(list(branch), flags, at_start, at_end) for branch in value[1]]
            return f"(?:{'|'.join(branches)})"
        if kind is op.SUBPATTERN:
            _, added, removed, content = value
            return f"(?:{self.sequence(list(content), (flags | added) & ~removed, at_start, at_end)})"
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            return self._repeat(value, flags, at_start, at_end)
        return _write_case(_single(kind, value, flags), flags)

    def _repeat(
        self, value: tuple[int, Any, Sequence[Item]], flags: int, at_start: bool, at_end: bool
    ) -> str:
        least, most, content = value
        once = most == 1
        body = self.sequence(list(content), flags, at_start and once, at_end and once)
        unlimited = most == op.MAXREPEAT
        if least > _MAX_REPEAT or (not unlimited and most > _MAX_REPEAT):
            raise self._refusal(f"a repetition of more than {_MAX_REPEAT}")
        return f"(?:{body}){{{least},{'' if unlimited else most}}}"

    def _anchor(self, where: Any, at_start: bool, at_end: bool) -> str:
        if where in _STARTS:
            if at_start:
                return ""
            raise self._refusal("^ after the start")
        if where in _ENDS:
            if at_end:
                return ""
            raise self._refusal("$ before the end")
        raise self._refusal(r"a word boundary \b or \B")

    def _refusal(self, what: str) -> GrammarError:
        return GrammarError(f"{shorten(self._pattern)} has {what}, which is not supported")


def _single(kind: Any, value: Any, flags: int) -> str:
    if kind is op.LITERAL:
        return _character(value)
    if kind is op.NOT_LITERAL:
        return f"[^{_character(value)}]"
    if kind is op.ANY:
        return "(?s:.)" if flags & re.DOTALL else r"[^\n]"
    if kind is op.IN:
        return _set(value)
    raise GrammarError(f"{kind} is not supported in a regex")


def _set(members: Sequence[Item]) -> str:
    negated = bool(members) and members[0][0] is op.NEGATE
    written = []
    for kind, value in members[1:] if negated else members:
        if kind is op.LITERAL:
            written.append(_character(value))
        elif kind is op.RANGE:
            written.append(f"{_character(value[0])}-{_character(value[1])}")
        elif value in _CLASSES:
            written.append(_CLASSES[value])
        else:
            written.append(f"[^{_CLASSES[_NEGATED[value]]}]")
    return f"[{'^' if negated else ''}{''.join(written)}]"


def _character(code: int) -> str:
    return chr(code) if chr(code).isalnum() else f"\\x{{{code:x}}}"


def _write_case(written: str, flags: int) -> str:
    return f"(?i:{written})" if flags & re.IGNORECASE else written
