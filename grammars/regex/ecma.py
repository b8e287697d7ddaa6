"""Reads regexes as ECMA-262 defines them.

JSON schema recommends the flag u, so a pattern is read in that mode first. A pattern that is wrong in it is
read as JavaScript reads it without the flag (annex B of ECMA-262), as far as that is what its author can have
meant: an escaped letter without a meaning, such as `\\A` or `\\e`, has one in other dialects and is refused.
Both modes match code points. Beyond ECMA-262, flags may stand at the start, as in `(?i)`, and a group may be
named as in `(?P<name>…)`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import GrammarError
from .nodes import Anchor, Characters, Choice, LookAhead, Node, Repeat, Sequence
from .ranges import DIGIT, EVERYTHING, LAST_CODE_POINT, LINE_ENDS, SPACE, WORD, Ranges, invert, merge
from .unicode_sets import property_ranges, with_other_cases


class RegexError(GrammarError):
    """A pattern that is no regex, is not regular, or is not supported."""

    def __init__(self, pattern: str, reason: str) -> None:
        super().__init__(f"{shorten(pattern)} {reason}")
        self.pattern = pattern
        self.reason = reason


class ForeignError(RegexError):
    """A pattern with syntax that ECMA-262 lacks. Another engine may give it another meaning."""


class MalformedError(RegexError):
    """A pattern that is no regex in any dialect."""


class _SyntaxError(Exception):
    def __init__(self, reason: str, *, is_malformed: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_malformed = is_malformed


class _Flags(NamedTuple):
    ignore_case: bool = False
    dot_all: bool = False
    multiline: bool = False


_SHOWN = 200  # characters of a pattern that a message shows
TOO_DEEP = "has groups that are nested too deep: leave out those that it does not need"
_SYNTAX = frozenset("^$\\.*+?()[]{}|/")
_CONTROLS = {"f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B}
_CLASSES = {"d": DIGIT, "w": WORD, "s": SPACE}
_QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)(?:(,)([0-9]*))?\}")
_BOUNDS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_FLAG_GROUP = re.compile(r"\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_START_FLAGS = re.compile(r"\(\?([a-zA-Z]+)()\)")
_NAME = re.compile(r"\?P?<([^>]*)>")
_GROUP = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|(\((?!\?)|\(\?P?<(?![=!]))", re.DOTALL)
_FOREIGN_GROUPS = {
    "?>": "an atomic group (?>…)",
    "?(": "a conditional group (?(…)…)",
    "?#": "a comment (?#…)",
    "?|": "a branch reset (?|…)",
    "?&": "a recursion (?&…)",
    "?R": "a recursion (?R)",
}
_INSTEAD = {"A": "write ^", "Z": "write $", "z": "write $", "h": r"write [ \t]", "e": r"write \x1b"}


def shorten(pattern: str) -> str:
    """The pattern as an error's message shows it."""
    return f"'{pattern}'" if len(pattern) <= _SHOWN else f"'{pattern[:_SHOWN]}…'"


def parse(pattern: str) -> Node:
    """Parses a pattern. Raises RegexError."""
    try:
        return _parse(pattern)
    except _SyntaxError as error:
        kind = MalformedError if error.is_malformed else ForeignError
        raise kind(pattern, error.reason) from None
    except RecursionError:
        raise RegexError(pattern, TOO_DEEP) from None


def _parse(pattern: str) -> Node:
    try:
        return _Parser(pattern, is_unicode=True).whole()
    except _SyntaxError as error:
        try:
            return _Parser(pattern, is_unicode=False).whole()
        except _SyntaxError as other:
            error.is_malformed = error.is_malformed and other.is_malformed
            raise error from None


class _Parser:
    def __init__(self, pattern: str, *, is_unicode: bool) -> None:
        self._pattern = pattern
        self._is_unicode = is_unicode
        self._at = 0
        self._names: frozenset[str] = frozenset()
        """names of the groups that may match in the same text as the following part"""
        self._groups = sum(found[1] is not None for found in _GROUP.finditer(pattern))

    def whole(self) -> Node:
        flags = _Flags()
        while found := _START_FLAGS.match(self._pattern, self._at):
            self._at = found.end()
            flags = self._read_flags(flags, found)
        node = self._choice(flags)
        if self._at < len(self._pattern):
            raise _SyntaxError("is not a regex: a ) closes no group", is_malformed=True)
        return node

    def _rest(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        """Whether the unread rest begins with the text, which then counts as read."""
        if not self._rest(text):
            return False
        self._at += len(text)
        return True

    def _next(self) -> str:
        self._at += 1
        return self._pattern[self._at - 1]

    def _choice(self, flags: _Flags) -> Node:
        before = self._names
        branches = [self._sequence(flags)]
        names = self._names
        while self._take("|"):
            self._names = before
            branches.append(self._sequence(flags))
            names |= self._names
        self._names = names
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _sequence(self, flags: _Flags) -> Node:
        parts: list[Node] = []
        while self._at < len(self._pattern) and not self._rest("|") and not self._rest(")"):
            parts.append(self._term(flags))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _term(self, flags: _Flags) -> Node:
        letter = self._next()
        if letter in "^$":
            if flags.multiline:
                raise self._refusal("^ or $ with the flag m")
            return self._forbid_repeat(Anchor(letter))
        if letter == "(":
            return self._group(flags)
        if _QUANTIFIER.match(self._pattern, self._at - 1):
            raise _SyntaxError(
                f"is not a regex: there is nothing to repeat before {letter}", is_malformed=True
            )
        if letter in "{}]" and self._is_unicode:
            raise _SyntaxError(rf"has a single {letter}: write \{letter}")
        if letter == ".":
            return self._read_repeat(Characters(EVERYTHING if flags.dot_all else invert(LINE_ENDS)))
        if letter == "[":
            return self._read_repeat(Characters(self._class(flags)))
        if letter == "\\":
            return self._read_repeat(Characters(self._escape(flags)))
        return self._read_repeat(Characters(self._add_cases(((ord(letter), ord(letter)),), flags)))

    def _forbid_repeat(self, node: Node) -> Node:
        if self._at < len(self._pattern) and _QUANTIFIER.match(self._pattern, self._at):
            raise _SyntaxError("repeats an anchor or a look-ahead")
        return node

    def _read_repeat(self, node: Node) -> Node:
        found = _QUANTIFIER.match(self._pattern, self._at)
        if found is None:
            return node
        self._at = found.end()
        if found[0] in _BOUNDS:
            least, most = _BOUNDS[found[0]]
        else:
            least = _read_bound(found[1])
            most = None if found[2] and not found[3] else _read_bound(found[3] or found[1])
        self._take("?")  # a lazy quantifier matches the same texts as a greedy one
        if self._rest("+"):
            raise _SyntaxError("has a possessive quantifier, which ECMA-262 does not know")
        if most is not None and most < least:
            raise _SyntaxError(
                "is not a regex: the numbers of a quantifier are out of order", is_malformed=True
            )
        return Repeat(node, least, most)

    def _group(self, flags: _Flags) -> Node:
        for opening, is_negative in (("?=", False), ("?!", True)):
            if self._take(opening):
                node = LookAhead(self._read_group(flags), is_negative)
                return self._forbid_repeat(node) if self._is_unicode else self._read_repeat(node)
        if self._take("?<=") or self._take("?<!"):
            raise self._refusal("look-behind (?<=…) or (?<!…)")
        if self._take("?:"):
            return self._read_repeat(self._read_group(flags))
        if found := _FLAG_GROUP.match(self._pattern, self._at):
            if found[3] == ")":
                raise _SyntaxError(f"has the flags ({found[0]} after its start: write (?i:…)")
            self._at = found.end()
            return self._read_repeat(self._read_group(self._read_flags(flags, found)))
        if found := _NAME.match(self._pattern, self._at):
            if not found[1].replace("$", "_").isidentifier():
                raise _SyntaxError(f"has a group with the name {found[1]!r}, which is no identifier")
            if found[1] in self._names:
                raise _SyntaxError(f"has two groups with the name {found[1]!r}")
            self._names |= {found[1]}
            self._at = found.end()
        elif self._rest("?"):
            what = _FOREIGN_GROUPS.get(self._pattern[self._at : self._at + 2], "an unknown group (?")
            raise _SyntaxError(f"has {what}, which ECMA-262 does not know")
        return self._read_repeat(self._read_group(flags))

    def _read_group(self, flags: _Flags) -> Node:
        node = self._choice(flags)
        if not self._take(")"):
            raise _SyntaxError("is not a regex: a ( is never closed", is_malformed=True)
        return node

    def _read_flags(self, flags: _Flags, found: re.Match[str]) -> _Flags:
        added, removed = found[1], found[2] or ""
        for letter in added + removed:
            if letter not in "ims":
                raise _SyntaxError(f"uses the flag {letter}; i and s are supported")
        names = dict(zip("ism", _Flags._fields, strict=True))
        changes = {names[letter]: letter in added for letter in added + removed}
        return flags._replace(**changes)

    def _class(self, flags: _Flags) -> Ranges:
        is_negated = self._take("^")
        found: list[tuple[int, int]] = []
        while not self._take("]"):
            low = self._member(flags)
            if not self._rest("-") or self._rest("-]"):
                found += low
                continue
            self._at += 1
            found += self._range(low, self._member(flags))
        whole = self._add_cases(merge(found), flags)
        return invert(whole) if is_negated else whole

    def _range(self, low: Ranges, high: Ranges) -> Ranges:
        """The code points of a class from `low` to `high`."""
        if not (len(low) == len(high) == 1 and low[0][0] == low[0][1] and high[0][0] == high[0][1]):
            if self._is_unicode:
                raise _SyntaxError("has a range that begins or ends with a class")
            return (*low, (0x2D, 0x2D), *high)
        if low > high:
            raise _SyntaxError("is not a regex: the ends of a range are out of order", is_malformed=True)
        return ((low[0][0], high[0][0]),)

    def _member(self, flags: _Flags) -> Ranges:
        if self._at == len(self._pattern):
            raise _SyntaxError("is not a regex: a [ is never closed", is_malformed=True)
        letter = self._next()
        if letter == "\\":
            return self._escape(flags, in_class=True)
        return ((ord(letter), ord(letter)),)

    def _escape(self, flags: _Flags, *, in_class: bool = False) -> Ranges:
        """The code points that the escape after a backslash stands for."""
        if self._at == len(self._pattern):
            raise _SyntaxError("is not a regex: it ends with a \\", is_malformed=True)
        letter = self._next()
        if letter.lower() in _CLASSES:
            named = self._add_cases(_CLASSES[letter.lower()], flags)
            return named if letter.islower() else invert(named)
        if letter in "pP" and self._is_unicode:
            named = self._property()
            return self._add_cases(named if letter == "p" else invert(named), flags)
        if letter in "bB" and not in_class:
            raise self._refusal(r"a word boundary \b or \B")
        if letter == "k" and self._rest("<"):
            raise self._refusal("a back-reference")
        code = self._escaped_code(letter, in_class)
        return ((code, code),) if in_class else self._add_cases(((code, code),), flags)

    def _escaped_code(self, letter: str, in_class: bool) -> int:
        if letter == "b":
            return 0x08
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter.isdecimal() and letter.isascii():
            return self._read_number(in_class)
        if letter == "c":
            return self._control(in_class)
        if letter == "x" and (digits := self._hexadecimal(2)):
            return int(digits, 16)
        if letter == "u":
            return self._unicode()
        is_plain = letter in _SYNTAX or (letter == "-" and in_class)
        if is_plain or (not self._is_unicode and not letter.isalpha()):
            return ord(letter)
        raise _SyntaxError(_unknown_escape(letter))

    def _read_number(self, in_class: bool) -> int:
        """The code point of `\\0`, or of an octal number in annex B; refuses a back-reference."""
        self._at -= 1
        number = re.compile(r"[0-9]+").match(self._pattern, self._at)
        assert number is not None
        if number[0] == "0":
            self._at += 1
            return 0
        if not in_class and number[0][0] != "0" and int(number[0][:6]) <= self._groups:
            raise self._refusal("a back-reference")
        if self._is_unicode:
            raise _SyntaxError(f"has \\{number[0]}, which is no group: write a code point as \\x00")
        octal = re.compile(r"[0-3][0-7]{0,2}|[4-7][0-7]?|[89]").match(self._pattern, self._at)
        assert octal is not None
        self._at = octal.end()
        return ord(octal[0]) if octal[0] in "89" else int(octal[0], 8)

    def _control(self, in_class: bool) -> int:
        following = self._pattern[self._at : self._at + 1]
        is_letter = following.isascii() and following.isalpha()
        if is_letter or (in_class and not self._is_unicode and re.fullmatch("[0-9_]", following)):
            return ord(self._next()) & 31
        raise _SyntaxError(_unknown_escape("c"))

    def _hexadecimal(self, count: int) -> str:
        """Reads `count` hexadecimal digits; empty, without reading, if fewer follow."""
        found = re.compile(f"[0-9A-Fa-f]{{{count}}}").match(self._pattern, self._at)
        self._at += count if found else 0
        return found[0] if found else ""

    def _unicode(self) -> int:
        if self._is_unicode and (braced := re.compile(r"\{([0-9A-Fa-f]+)\}").match(self._pattern, self._at)):
            code = int(braced[1], 16)
            if code > LAST_CODE_POINT:
                raise _SyntaxError(f"has \\u{braced[0]}, which is no code point")
            self._at = braced.end()
            return code
        digits = self._hexadecimal(4)
        if not digits:
            raise _SyntaxError(_unknown_escape("u"))
        code, behind = int(digits, 16), self._at
        if 0xD800 <= code < 0xDC00 and self._take("\\u"):
            low = int(self._hexadecimal(4) or "0", 16)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + ((code & 0x3FF) << 10) + (low & 0x3FF)
            self._at = behind
        return code

    def _property(self) -> Ranges:
        found = re.compile(r"\{([^}]*)\}").match(self._pattern, self._at)
        if found is None:
            raise _SyntaxError(r"has \p without a name: write \p{L}")
        self._at = found.end()
        ranges = property_ranges(found[1])
        if ranges is None:
            raise _SyntaxError(f"has the class \\p{{{found[1]}}}, which is not supported")
        return ranges

    def _add_cases(self, ranges: Ranges, flags: _Flags) -> Ranges:
        return with_other_cases(ranges, is_unicode=self._is_unicode) if flags.ignore_case else ranges

    def _refusal(self, what: str) -> RegexError:
        return RegexError(self._pattern, f"has {what}, which is not supported")


def _read_bound(digits: str) -> int:
    """The number that the digits write; of long ones, some number that is too large anyway."""
    return int(digits[-12:]) if len(digits.lstrip("0")) <= 12 else 10**12


def _unknown_escape(letter: str) -> str:
    what = f"has \\{letter}, which ECMA-262 does not know"
    if letter.isalpha():
        return f"{what}: {_INSTEAD[letter]}" if letter in _INSTEAD else what
    return rf"has \{letter}, which ECMA-262 knows only without the flag u: write {letter}"
