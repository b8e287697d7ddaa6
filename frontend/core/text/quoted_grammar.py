"""Grammars for text inside the quotes of a JSON string, made of grammars for the text itself.

A character that JSON escapes becomes its usual escape, as Python's json module writes it. Every other
character stays as it is. So each text has one quoted form, and a quoted grammar matches exactly the quoted
forms of the texts that the grammar matches.
"""

from __future__ import annotations

import json
import re
import re._constants as op
import re._parser as parser
from typing import Any

MAX_CODE_POINT = 0x10FFFF
_FIRST_PLAIN = 0x20
_Ranges = list[tuple[int, int]]
_CATEGORIES: dict[Any, _Ranges] = {
    op.CATEGORY_DIGIT: [(48, 57)],
    op.CATEGORY_WORD: [(48, 57), (65, 90), (95, 95), (97, 122)],
    op.CATEGORY_SPACE: [(9, 13), (32, 32)],
}
_NOT_CATEGORIES = {
    op.CATEGORY_NOT_DIGIT: op.CATEGORY_DIGIT,
    op.CATEGORY_NOT_WORD: op.CATEGORY_WORD,
    op.CATEGORY_NOT_SPACE: op.CATEGORY_SPACE,
}
_REPEATS = {op.MAX_REPEAT, op.MIN_REPEAT}
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "FLOAT": r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "WS_INLINE": "[ \t]+",
    "WS": "[ \t\f\r\n]+",
    "CR": "\r",
    "LF": "\n",
    "NEWLINE": "(?:\r?\n)+",
}
"""The terminals of Lark's module `common`."""
_TOKEN = re.compile(
    r"(?P<comment>//[^\n]*|(?:(?<=\n)|^)\#[^\n]*)"
    r'|(?P<string>"(?:[^"\\\n]|\\.)*"i?)'
    r"|(?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[a-z]*)"
    r"|%import\s+common\.(?P<common>\w+)(?:\s*->\s*(?P<alias>\w+))?"
    r"|%import\s+common\s*\((?P<several>[^)]*)\)"
    r"|(?P<directive>%\w+)"
    r"|(?P<token><[^>\n]*>)"
    r"|(?P<rule>\b[a-z_]\w*)"
    r"|(?P<terminal>\b_?[A-Z]\w*)"
    r"|(?P<complement>~(?!\s*\d))"
    r"|(?P<range>\.\.)",
    re.DOTALL,
)


class QuotingError(ValueError):
    """A grammar that has no quoted form here."""


def quoted_text(text: str) -> str:
    """The text as JSON has it between quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def quoted_pattern(pattern: str, flags: int = 0) -> str:
    """The regex of the quoted forms of the texts that `pattern` matches as a whole."""
    parsed = _parsed(pattern, flags)
    try:
        return _written(parsed, flags)
    except RecursionError:
        raise QuotingError("a pattern is nested too deep") from None


def _parsed(pattern: str, flags: int) -> Any:
    try:
        return parser.parse(pattern, flags)
    except re.error as error:
        raise QuotingError(f"the pattern {pattern[:80]!r} is wrong: {error}") from None
    except (RecursionError, OverflowError):
        raise QuotingError("a pattern is nested too deep, or has too large a number") from None


def quoted_lark(grammar: str) -> str:
    """The Lark grammar of the quoted forms of the texts that `grammar` matches.

    Terminals become rules whose lexemes are runs of plain characters, and single escapes: llguidance ends a
    lexeme by looking one byte ahead, and the first byte of an escape does not tell which one it is.
    """
    return _TOKEN.sub(_quoted_token, grammar)


def _quoted_token(found: re.Match[str]) -> str:
    text = found[0]
    match found.lastgroup:
        case "comment":
            return ""
        case "string":
            return _string(text)
        case "regex":
            pattern, _, letters = text[1:].rpartition("/")
            return _rule_of(pattern.replace(r"\/", "/"), _flags(letters))
        case "rule":
            return text
        case "terminal":
            return _rule_name(text)
        case "common" | "alias":
            return _common(found["common"], found["alias"] or found["common"])
        case "several":
            return "\n".join(_common(name.strip(), name.strip()) for name in found["several"].split(","))
        case "range":
            raise QuotingError('a range such as "a".."z" is not supported: write /[a-z]/')
        case "complement":
            raise QuotingError("the complement ~ is not supported: write a character class")
    raise QuotingError(f"{text} is not supported in the grammar of a tool's input")


def _rule_name(terminal: str) -> str:
    return f"terminal_{terminal.lower()}"


def _string(literal: str) -> str:
    ignores_case = literal.endswith("i")
    try:
        text = json.loads(literal.removesuffix("i"))
    except ValueError as error:
        raise QuotingError(f"the string {literal[:80]} is wrong: {error}") from None
    return _rule_of(re.escape(text), re.IGNORECASE) if ignores_case else _lexeme(text)


def _lexeme(text: str) -> str:
    return json.dumps(quoted_text(text), ensure_ascii=False)


def _flags(letters: str) -> int:
    known = {"i": re.IGNORECASE, "s": re.DOTALL, "m": 0, "x": re.VERBOSE, "u": 0}
    flags = 0
    for letter in letters:
        if letter not in known:
            raise QuotingError(f"the flag {letter!r} of a pattern is not supported")
        flags |= known[letter]
    return flags


def _common(name: str, alias: str) -> str:
    if name not in _COMMON:
        raise QuotingError(f"common.{name} is not supported: write its pattern")
    return f"{_rule_name(alias)}: {_rule_of(_COMMON[name], 0)}"


def _rule_of(pattern: str, flags: int) -> str:
    """The body of a Lark rule that matches the quoted forms of the texts that `pattern` matches."""
    parsed = _parsed(pattern, flags)
    try:
        return f"({_rule(parsed, flags)})"
    except RecursionError:
        raise QuotingError("a pattern is nested too deep") from None


def _rule(parsed: Any, flags: int) -> str:
    return " ".join(_rule_piece(kind, value, flags) for kind, value in parsed) or '""'


def _rule_piece(kind: Any, value: Any, flags: int) -> str:
    if kind is op.BRANCH:
        return f"({' | '.join(_rule(each, flags) for each in value[1])})"
    if kind is op.SUBPATTERN:
        _, added, removed, inner = value
        return f"({_rule(inner, flags & ~removed | added)})"
    if kind in _REPEATS:
        least, most, inner = value
        ranges = _class_of(inner, flags)
        if most is op.MAXREPEAT and least <= 1:
            body = _rule(inner, flags) if ranges is None else _choice(ranges, "+")
            return f"({body}){'+' if least else '*'}"
        times = "" if most is op.MAXREPEAT else str(most)
        return f"({_rule(inner, flags)}){{{least},{times}}}"
    return f"({_choice(_characters(kind, value, flags), '')})"


def _class_of(parsed: Any, flags: int) -> _Ranges | None:
    """The characters of a pattern that is one character, perhaps in groups; None for any other pattern."""
    if len(parsed) != 1:
        return None
    kind, value = parsed[0]
    if kind is op.SUBPATTERN:
        return _class_of(value[3], flags & ~value[2] | value[1])
    return _characters(kind, value, flags) if kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN) else None


def _choice(ranges: _Ranges, repeated: str) -> str:
    """Lexemes for the quoted forms of the characters; those without escapes are repeated in one lexeme."""
    escaped, plain = _forms(ranges)
    lexemes = [json.dumps(form, ensure_ascii=False) for form in escaped]
    if plain:
        lexemes.append(f"/{plain.replace('/', chr(92) + '/')}{repeated}/")
    return " | ".join(lexemes)


def _written(parsed: Any, flags: int) -> str:
    return "".join(_piece(kind, value, flags) for kind, value in parsed)


def _piece(kind: Any, value: Any, flags: int) -> str:
    if kind is op.BRANCH:
        return f"(?:{'|'.join(_written(each, flags) for each in value[1])})"
    if kind is op.SUBPATTERN:
        _, added, removed, inner = value
        return f"(?:{_written(inner, flags & ~removed | added)})"
    if kind in _REPEATS:
        least, most, inner = value
        times = "" if most is op.MAXREPEAT else str(most)
        return f"(?:{_written(inner, flags)}){{{least},{times}}}"
    return _one_of(_characters(kind, value, flags))


def _characters(kind: Any, value: Any, flags: int) -> _Ranges:
    """The characters that one piece of a pattern matches."""
    if kind is op.LITERAL:
        return _cased([(value, value)], flags)
    if kind is op.NOT_LITERAL:
        return _others(_cased([(value, value)], flags))
    if kind is op.ANY:
        return [(0, MAX_CODE_POINT)] if flags & re.DOTALL else _others([(10, 10)])
    if kind is op.IN:
        return _set(value, flags)
    if kind is op.AT and value in (op.AT_BEGINNING, op.AT_BEGINNING_STRING, op.AT_END, op.AT_END_STRING):
        raise QuotingError("^ and $ are not supported: a pattern matches the whole text")
    raise QuotingError(f"{str(kind).lower()} is not supported in a pattern")


def _set(entries: Any, flags: int) -> _Ranges:
    ranges: _Ranges = []
    is_negated = False
    for kind, value in entries:
        if kind is op.NEGATE:
            is_negated = True
        elif kind is op.LITERAL:
            ranges.append((value, value))
        elif kind is op.RANGE:
            ranges.append(value)
        elif value in _NOT_CATEGORIES:
            ranges += _others(_CATEGORIES[_NOT_CATEGORIES[value]])
        else:
            ranges += _CATEGORIES[value]
    ranges = _cased(ranges, flags)
    return _others(ranges) if is_negated else ranges


def _cased(ranges: _Ranges, flags: int) -> _Ranges:
    """The ranges, with both cases of ASCII letters if the flags ignore case."""
    if not flags & re.IGNORECASE:
        return ranges
    more = []
    for low, high in ranges:
        for first, last, shift in ((65, 90, 32), (97, 122, -32)):
            start, end = max(low, first), min(high, last)
            if start <= end:
                more.append((start + shift, end + shift))
    return [*ranges, *more]


def _others(ranges: _Ranges) -> _Ranges:
    """All characters that are in none of the ranges."""
    found, next_one = [], 0
    for low, high in sorted(ranges):
        if low > next_one:
            found.append((next_one, low - 1))
        next_one = max(next_one, high + 1)
    return [*found, (next_one, MAX_CODE_POINT)] if next_one <= MAX_CODE_POINT else found


def _one_of(ranges: _Ranges) -> str:
    """A pattern for the quoted forms of the characters in the ranges."""
    escaped, plain = _forms(ranges)
    forms = [*map(re.escape, escaped), *filter(None, [plain])]
    return forms[0] if len(forms) == 1 else f"(?:{'|'.join(forms)})"


def _forms(ranges: _Ranges) -> tuple[list[str], str]:
    """The escapes of the characters that need one, and a class of the others, which may be empty."""
    escaped = [
        quoted_text(chr(code))
        for code in (*range(_FIRST_PLAIN), ord('"'), ord("\\"))
        if any(low <= code <= high for low, high in ranges)
    ]
    special = [(0, _FIRST_PLAIN - 1), (34, 34), (92, 92), (0xD800, 0xDFFF)]
    plain = _others([*_others(ranges), *special])
    if not escaped and not plain:
        raise QuotingError("a pattern has a class without characters")
    return escaped, f"[{''.join(map(_range, plain))}]" if plain else ""


def _range(ends: tuple[int, int]) -> str:
    low, high = (f"\\x{code:02x}" if code < 0x80 else chr(code) for code in ends)
    return low if low == high else f"{low}-{high}"
