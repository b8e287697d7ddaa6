"""Regexes as automata over code points, with ECMA-262's search semantics and anchors in any position."""

from __future__ import annotations

import re
import re._constants as op
import re._parser as parser
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import GrammarError, TooLargeError
from .dfa import (
    LAST_CODE_POINT,
    MAX_STATES,
    REJECT,
    Dfa,
    complement,
    distinct_columns,
    intersection,
    minimal,
)
from .pattern import is_malformed, parse_fault, shortened
from .ranges import CATEGORIES, EVERYTHING, LINE_ENDS, Ranges, inverted, merged, other_case
from .subsets import Edges, Moves, closures, edges, subsets

MAX_NODES = 6_000
Item: TypeAlias = tuple[Any, Any]
_START, _END = "^", "$"

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
    """A pattern that is no regex, is not regular, or is not supported."""

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(f"{shortened(pattern)} {reason}")
        self.pattern = pattern
        self.reason = reason

    def __reduce__(self) -> tuple[type[RegexError], tuple[str, str]]:
        return type(self), (self.pattern, self.reason)


class MalformedError(RegexError):
    """A pattern that is no regex in any dialect."""


@lru_cache(512)
def searching(pattern: str) -> Dfa:
    """The automaton of the texts that contain a match. Raises RegexError."""
    return _compiled(pattern, anywhere=True)


@lru_cache(512)
def matching(pattern: str) -> Dfa:
    """The automaton of the texts that match as a whole."""
    return _compiled(pattern, anywhere=False)


def _compiled(pattern: str, *, anywhere: bool) -> Dfa:
    properties: list[Ranges] = []
    try:
        parsed = parser.parse(_in_python(pattern, properties))
    except (re.error, RecursionError, OverflowError) as error:
        kind = MalformedError if is_malformed(error) else RegexError
        raise kind(pattern, parse_fault(error)) from None
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
    """The items without look-ahead at the very start, after `^`; each such look-ahead becomes an
    intersection."""
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
        nfa.move(before, EVERYTHING, before)
        nfa.jump(before, start)
        nfa.jump(end, after)
        nfa.move(after, EVERYTHING, after)
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
    """The general category of every code point."""
    return [unicodedata.category(chr(code)) for code in range(LAST_CODE_POINT + 1)]


@lru_cache(64)
def _property(category: str, negated: bool) -> Ranges:
    members = [code for code, own in enumerate(_categories()) if own.startswith(category)]
    ranges = merged((code, code) for code in members)
    return inverted(ranges) if negated else ranges


class _Nfa:
    """`_moves[i]` are (code points, target); `_jumps[i]` are targets that consume no character."""

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
            return inverted(self._literal(value, flags))
        if kind is op.ANY:
            return EVERYTHING if flags & re.DOTALL else inverted(LINE_ENDS)
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
            return merged((ord(each), ord(each)) for each in variants if len(each) == 1)
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
                    ranges += other_case(value)
            else:
                ranges += CATEGORIES[value]
        whole = merged(ranges)
        return inverted(whole) if negated else whole

    def _refusal(self, what: str) -> RegexError:
        return RegexError(self._pattern, f"has {what}, which is not supported")

    def determinized(self, start: int, end: int) -> Dfa:
        cuts, class_of_cut, takes = self._classes()
        sources = np.array([source for source, row in enumerate(self._moves) for _ in row], np.int32)
        targets = np.array([target for row in self._moves for _, target in row], np.int32)
        ends = self._reaching(end, _END)
        place = np.full(len(self._moves), -1, np.int32)  # of nodes with moves, and of the end
        kept = np.union1d(sources, np.flatnonzero(ends)).astype(np.int32)
        place[kept] = np.arange(len(kept))
        words = -(-len(kept) // 64) or 1
        later, which = np.unique(targets, return_inverse=True)
        moves = Moves(
            first=np.searchsorted(sources, np.append(kept, len(place))),
            takes=takes,
            leads_to=which.reshape(-1),
            reached=closures(self._edges(), later.astype(np.int32), place, words),
        )
        first = closures(self._edges(_START), np.array([start], np.int32), place, words)
        sets, transitions = subsets(first[0], moves, MAX_STATES + 1)
        if len(sets) > MAX_STATES:
            raise TooLargeError(f"more than {MAX_STATES} states in a string or number")
        is_end = np.zeros(64 * words, np.bool_)
        is_end[: len(kept)] = ends[kept]
        accepts = (sets & np.packbits(is_end, bitorder="little").view(np.uint64)).any(axis=1)
        accepts[0] = self._reaching(end, _START, _END)[start]
        return minimal(Dfa(cuts, class_of_cut, transitions, np.where(accepts, 0, REJECT).astype(np.int32)))

    def _classes(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
        """The cuts, the class of each cut, and the classes that each move takes, [moves, classes]."""
        moves = [ranges for row in self._moves for ranges, _ in row]
        number = {ranges: position for position, ranges in enumerate(dict.fromkeys(moves))}
        ends = {end for ranges in number for low, high in ranges for end in (low, high + 1)}
        cuts = np.array(sorted({0, *ends} - {LAST_CODE_POINT + 1}), np.int32)
        takes = np.zeros((len(number), len(cuts)), np.bool_)
        for ranges, position in number.items():
            bounds = np.array(ranges, np.int32).reshape(-1)
            bounds[1::2] += 1
            takes[position] = np.searchsorted(bounds, cuts, "right") % 2
        columns, class_of_cut = distinct_columns(takes.astype(np.int32))
        of_move = np.array([number[ranges] for ranges in moves], np.int64)
        return cuts, class_of_cut.astype(np.int32), takes[:, columns][of_move]

    def _edges(self, *conditions: str) -> Edges:
        """The jumps that are open where these anchors hold."""
        jumps = self._passable(*conditions)
        return edges(len(self._moves), jumps[:, 0], jumps[:, 1])

    def _reaching(self, end: int, *conditions: str) -> NDArray[np.bool_]:
        """The nodes [nodes] from which jumps lead to the end, where these anchors hold."""
        jumps = self._passable(*conditions)
        nodes = len(self._moves)
        every = np.arange(nodes, dtype=np.int32)
        back = edges(nodes, jumps[:, 1], jumps[:, 0])
        bits = closures(back, np.array([end], np.int32), every, -(-nodes // 64))
        return np.unpackbits(bits.view(np.uint8), bitorder="little")[:nodes].astype(np.bool_)

    def _passable(self, *conditions: str) -> NDArray[np.int32]:
        """[jumps, 2]"""
        passable = [
            (source, target)
            for source, jumps in enumerate(self._jumps)
            for target, condition in jumps
            if condition is None or condition in conditions
        ]
        return np.array(passable, np.int32).reshape(-1, 2)
