"""Regexes as automata over code points, with ECMA-262's search semantics and anchors wherever they stand."""

from __future__ import annotations

import re
import re._constants as op
import re._parser as parser
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, TypeAlias

from ..errors import GrammarError, TooLargeError
from ..regex import is_malformed
from .dfa import LAST_CODE_POINT, Dfa, complement, explored, intersection, minimal

MAX_NODES = 6_000
Ranges: TypeAlias = tuple[tuple[int, int], ...]
Item: TypeAlias = tuple[Any, Any]
_START, _END = "^", "$"

_DIGIT: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_EVERYTHING: Ranges = ((0, LAST_CODE_POINT),)
_REFUSED = {
    op.GROUPREF: "a back-reference",
    op.GROUPREF_EXISTS: "a conditional group",
    op.ATOMIC_GROUP: "an atomic group (?>…)",
    op.POSSESSIVE_REPEAT: "a possessive quantifier",
}
_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z_])")
_LETTER_ESCAPE = re.compile(r"\\(\\|/|-|c[A-Za-z]|p\{[^}]*\}|P\{[^}]*\}|u\{[0-9A-Fa-f]+\}|Z|z|A|e)")
_PROPERTY_MARK = 0xF0000  # private code points stand for \p{…} in what Python's parser reads


class RegexError(GrammarError):
    """A pattern that is no regex, or that is not regular or not supported."""

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(f"{pattern!r} {reason}")
        self.pattern = pattern
        self.reason = reason

    def __reduce__(self) -> tuple[type[RegexError], tuple[str, str]]:
        return type(self), (self.pattern, self.reason)


class MalformedError(RegexError):
    """A pattern that is no regex in any dialect."""


@lru_cache(512)
def searching(pattern: str) -> Dfa:
    """Texts that contain a match. Raises GrammarError for what isn't regular, naming it."""
    return _compiled(pattern, anywhere=True)


@lru_cache(512)
def matching(pattern: str) -> Dfa:
    """Texts that match as a whole."""
    return _compiled(pattern, anywhere=False)


def _compiled(pattern: str, *, anywhere: bool) -> Dfa:
    properties: list[Ranges] = []
    try:
        parsed = parser.parse(_in_python(pattern, properties))
    except (re.error, RecursionError, OverflowError) as error:
        kind = MalformedError if is_malformed(error) else RegexError
        raise kind(pattern, f"is not a regex: {error}") from None
    flags = parsed.state.flags & ~re.UNICODE
    if flags & ~(re.IGNORECASE | re.DOTALL | re.ASCII):
        raise RegexError(pattern, "uses a flag that is not supported; (?i) and (?s) are")
    items, ahead = _without_leading_look_ahead(list(parsed))
    dfa = _automaton(pattern, items, flags, properties, anywhere)
    for content, is_negative in ahead:
        searched = _automaton(pattern, [(op.AT, op.AT_BEGINNING), *content], flags, properties, True)
        dfa = intersection(dfa, complement(searched) if is_negative else searched)
    return dfa


def _without_leading_look_ahead(items: list[Item]) -> tuple[list[Item], list[tuple[list[Item], bool]]]:
    """Look-ahead at the very start, after `^`, is an intersection with another regex."""
    if not items or items[0] != (op.AT, op.AT_BEGINNING):
        return items, []
    ahead = []
    position = 1
    while position < len(items) and items[position][0] in (op.ASSERT, op.ASSERT_NOT):
        kind, (direction, content) = items[position]
        if direction < 0:
            break
        ahead.append((list(content), kind is op.ASSERT_NOT))
        position += 1
    return [items[0], *items[position:]], ahead


def _automaton(
    pattern: str, items: Sequence[Item], flags: int, properties: list[Ranges], anywhere: bool
) -> Dfa:
    nfa = _Nfa(pattern, properties)
    start, end = nfa.node(), nfa.node()
    nfa.sequence(items, flags, start, end)
    if anywhere:
        before, after = nfa.node(), nfa.node()
        nfa.move(before, _EVERYTHING, before)
        nfa.jump(before, start)
        nfa.jump(end, after)
        nfa.move(after, _EVERYTHING, after)
        start, end = before, after
    return nfa.determinized(start, end)


def _in_python(pattern: str, properties: list[Ranges]) -> str:
    """The pattern in the syntax of Python's parser."""

    def replaced(match: re.Match[str]) -> str:
        escape = match[1]
        if escape[0] == "c":
            return f"\\x{ord(escape[1]) & 31:02x}"
        if escape[0] == "u":
            return re.escape(_character(escape[2:-1], pattern))
        if escape[0] in "pP":
            properties.append(_property(_category(escape[2:-1], pattern), escape[0] == "P"))
            return chr(_PROPERTY_MARK + len(properties) - 1)
        if escape in "AZz":
            return {"A": "\\A", "Z": "\\Z", "z": "\\Z"}[escape]
        return {"e": "\\x1b", "/": "/"}.get(escape, match[0])

    translated = _LETTER_ESCAPE.sub(replaced, _NAMED_GROUP.sub("(?P<", pattern))
    marks = sum(letter >= chr(_PROPERTY_MARK) for letter in translated)
    if properties and marks > len(properties):
        raise RegexError(pattern, "has private code points beside \\p{…}")
    return translated


def _character(digits: str, pattern: str) -> str:
    code = int(digits, 16)
    if code > LAST_CODE_POINT:
        raise RegexError(pattern, f"has \\u{{{digits}}}, which is no code point")
    return chr(code)


def _category(name: str, pattern: str) -> str:
    category = name.rpartition("=")[2]
    category = {"Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Number": "N"}.get(
        category, category
    )
    if not re.fullmatch("[LMNPSZC][a-z&]?", category):
        raise RegexError(pattern, f"has the class \\p{{{name}}}, which is not supported")
    return category


@cache
def _categories() -> list[str]:
    """Of every code point."""
    return [unicodedata.category(chr(code)) for code in range(LAST_CODE_POINT + 1)]


@lru_cache(64)
def _property(category: str, negated: bool) -> Ranges:
    members = [code for code, own in enumerate(_categories()) if own.startswith(category)]
    ranges = _merged((code, code) for code in members)
    return _inverted(ranges) if negated else ranges


class _Nfa:
    """States are bits; `_moves[i]` are (code points, target), `_jumps[i]` targets that cost no character."""

    def __init__(self, pattern: str, properties: list[Ranges]) -> None:
        self._pattern = pattern
        self._properties = properties
        self._moves: list[list[tuple[Ranges, int]]] = []
        self._jumps: list[list[tuple[int, str | None]]] = []

    def node(self) -> int:
        if len(self._moves) >= MAX_NODES:
            raise TooLargeError(f"more than {MAX_NODES} positions in a regex")
        self._moves.append([])
        self._jumps.append([])
        return len(self._moves) - 1

    def move(self, source: int, ranges: Ranges, target: int) -> None:
        self._moves[source].append((ranges, target))

    def jump(self, source: int, target: int, condition: str | None = None) -> None:
        self._jumps[source].append((target, condition))

    def sequence(self, items: Sequence[Item], flags: int, start: int, end: int) -> None:
        for item in items:
            following = self.node()
            self._item(item, flags, start, following)
            start = following
        self.jump(start, end)

    def _item(self, item: Item, flags: int, start: int, end: int) -> None:
        kind, value = item
        if kind in _REFUSED:
            raise self._refusal(_REFUSED[kind])
        if kind in (op.ASSERT, op.ASSERT_NOT):
            raise self._refusal("look-around that does not follow ^ at the start")
        if kind is op.AT:
            self.jump(start, end, self._anchor(value))
        elif kind is op.BRANCH:
            for branch in value[1]:
                self.sequence(list(branch), flags, start, end)
        elif kind is op.SUBPATTERN:
            _, added, removed, content = value
            self.sequence(list(content), (flags | added) & ~removed, start, end)
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            self._repeat(value, flags, start, end)
        else:
            self.move(start, self._ranges(kind, value, flags), end)

    def _repeat(self, value: tuple[int, Any, Sequence[Item]], flags: int, start: int, end: int) -> None:
        least, most, content = value
        for _ in range(least):
            following = self.node()
            self.sequence(content, flags, start, following)
            start = following
        if most == op.MAXREPEAT:
            loop = self.node()
            self.jump(start, loop)
            self.sequence(content, flags, loop, loop)
            self.jump(loop, end)
            return
        for _ in range(most - least):
            self.jump(start, end)
            following = self.node()
            self.sequence(content, flags, start, following)
            start = following
        self.jump(start, end)

    def _anchor(self, where: Any) -> str:
        if where in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            return _START
        if where in (op.AT_END, op.AT_END_STRING):
            return _END
        raise self._refusal(r"a word boundary \b or \B")

    def _ranges(self, kind: Any, value: Any, flags: int) -> Ranges:
        if kind is op.LITERAL:
            return self._literal(value, flags)
        if kind is op.NOT_LITERAL:
            return _inverted(self._literal(value, flags))
        if kind is op.ANY:
            return _EVERYTHING if flags & re.DOTALL else _inverted(_LINE_ENDS)
        if kind is op.IN:
            return self._set(value, flags)
        raise self._refusal(str(kind))

    def _is_property(self, code: int) -> bool:
        return _PROPERTY_MARK <= code < _PROPERTY_MARK + len(self._properties)

    def _literal(self, code: int, flags: int) -> Ranges:
        if self._is_property(code):
            return self._properties[code - _PROPERTY_MARK]
        if flags & re.IGNORECASE:
            variants = {chr(code), chr(code).lower(), chr(code).upper()}
            return _merged((ord(each), ord(each)) for each in variants if len(each) == 1)
        return ((code, code),)

    def _set(self, members: Sequence[Item], flags: int) -> Ranges:
        negated = bool(members) and members[0][0] is op.NEGATE
        ranges: list[tuple[int, int]] = []
        for kind, value in members[1:] if negated else members:
            if kind is op.LITERAL:
                ranges += self._literal(value, flags)
            elif kind is op.RANGE:
                if any(self._is_property(end) for end in value):
                    raise RegexError(self._pattern, "has a range that ends with a class")
                ranges.append(value)
                if flags & re.IGNORECASE:
                    ranges += _other_case(value)
            else:
                ranges += _CATEGORIES[value]
        merged = _merged(ranges)
        return _inverted(merged) if negated else merged

    def _refusal(self, what: str) -> RegexError:
        return RegexError(self._pattern, f"has {what}, which is not supported")

    def determinized(self, start: int, end: int) -> Dfa:
        cuts = sorted({0}.union(*({low, high + 1} for row in self._moves for r, _ in row for low, high in r)))
        if cuts[-1] > LAST_CODE_POINT:
            cuts.pop()
        members = [self._cut_members(cuts, row) for row in self._moves]
        later = [self._closure(node, frozenset()) for node in range(len(self._moves))]
        first = self._closure(start, frozenset([_START]))
        ending = self._ending(end, frozenset([_END]))
        empty = self._ending(end, frozenset([_START, _END])) >> start & 1
        steps = [[(mask, later[target]) for mask, target in row] if row else None for row in members]
        columns: dict[tuple[int, ...], list[int]] = {}
        for interval in range(len(cuts)):
            signature = tuple(mask >> interval & 1 for row in members for mask, _ in row)
            columns.setdefault(signature, []).append(interval)
        class_of_cut = [0] * len(cuts)
        sample = []
        for number, intervals in enumerate(columns.values()):
            sample.append(intervals[0])
            for interval in intervals:
                class_of_cut[interval] = number

        def following(state: tuple[int, bool], column: int) -> tuple[int, bool] | None:
            interval = sample[column]
            reached = 0
            rest = state[0]
            while rest:
                lowest = rest & -rest
                row = steps[lowest.bit_length() - 1]
                if row is not None:
                    for mask, target in row:
                        if mask >> interval & 1:
                            reached |= target
                rest ^= lowest
            return (reached, False) if reached else None

        def label(state: tuple[int, bool]) -> int:
            if state[1]:
                return 0 if empty else -1
            return 0 if state[0] & ending else -1

        return minimal(explored(cuts, class_of_cut, (first, True), following, label))

    def _cut_members(self, cuts: list[int], row: list[tuple[Ranges, int]]) -> list[tuple[int, int]]:
        """For each move a bit for every interval that it takes."""
        members = []
        for ranges, target in row:
            mask = 0
            position = 0
            for low, high in ranges:
                while position < len(cuts) and cuts[position] < low:
                    position += 1
                while position < len(cuts) and cuts[position] <= high:
                    mask |= 1 << position
                    position += 1
            members.append((mask, target))
        return members

    def _closure(self, start: int, satisfied: frozenset[str]) -> int:
        """Nodes with moves, or with jumps that wait for the end, reached without a character."""
        pending = [start]
        seen = 1 << start
        while pending:
            for target, condition in self._jumps[pending.pop()]:
                if (condition is None or condition in satisfied) and not seen >> target & 1:
                    seen |= 1 << target
                    pending.append(target)
        return seen

    def _ending(self, end: int, satisfied: frozenset[str]) -> int:
        """Nodes from which the end is reached without a character when the text ends."""
        sources: dict[int, list[int]] = {}
        for node, jumps in enumerate(self._jumps):
            for target, condition in jumps:
                if condition is None or condition in satisfied:
                    sources.setdefault(target, []).append(node)
        pending = [end]
        seen = 1 << end
        while pending:
            for source in sources.get(pending.pop(), ()):
                if not seen >> source & 1:
                    seen |= 1 << source
                    pending.append(source)
        return seen


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _inverted(ranges: Ranges) -> Ranges:
    gaps: list[tuple[int, int]] = []
    after = 0
    for low, high in ranges:
        if low > after:
            gaps.append((after, low - 1))
        after = high + 1
    if after <= LAST_CODE_POINT:
        gaps.append((after, LAST_CODE_POINT))
    return tuple(gaps)


def _other_case(bounds: tuple[int, int]) -> list[tuple[int, int]]:
    """ASCII letters of the range in the other case."""
    others = []
    for first, last, shift in ((0x41, 0x5A, 32), (0x61, 0x7A, -32)):
        low, high = max(first, bounds[0]), min(last, bounds[1])
        if low <= high:
            others.append((low + shift, high + shift))
    return others


_CATEGORIES: dict[Any, Ranges] = {
    op.CATEGORY_DIGIT: _DIGIT,
    op.CATEGORY_WORD: _WORD,
    op.CATEGORY_SPACE: _SPACE,
    op.CATEGORY_NOT_DIGIT: _inverted(_DIGIT),
    op.CATEGORY_NOT_WORD: _inverted(_WORD),
    op.CATEGORY_NOT_SPACE: _inverted(_SPACE),
}
