"""Turns the arguments of calls into JSON, while their text arrives.

Each reader's `feed` takes more text. It returns JSON text, and the text after the arguments, None until they
end. The joined JSON is not checked.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping
from typing import Protocol

from ..text.reasoning import count_begun
from .call_format import PYTHON_WORDS, Parameters, parse_json

ParameterTypes = Mapping[str, Collection[str]]
"""The JSON types that a function's schema allows for each of its parameters. Others may have any type."""
_WORDS = {word: name for name, word in PYTHON_WORDS.items()}
_MARKS = "{}[]:,"


class ArgumentReader(Protocol):
    def feed(self, text: str) -> tuple[str, str | None]: ...


def make_reader(syntax: Parameters | None, types: ParameterTypes) -> ArgumentReader:
    if syntax is None:
        return JsonArguments()
    if syntax.quote is None:
        return KeywordArguments()
    return ElementArguments(syntax, types) if syntax.is_raw else NestedArguments(syntax.quote)


class BracketScanner:
    """Tracks brackets and strings in text that arrives in pieces.

    Works for JSON and Python literals: brackets inside `quotes` don't count, and backslashes escape.
    """

    def __init__(self, quotes: str = '"') -> None:
        self._quotes = quotes
        self._quote = ""
        self._escaped = False
        self.depth = 0

    @property
    def is_outside(self) -> bool:
        """Whether the next character is in no bracket and in no string."""
        return self.depth == 0 and not self._quote

    @property
    def in_string(self) -> bool:
        return bool(self._quote)

    def closes(self, character: str) -> bool:
        """Reads a character. Returns whether it closes the outermost bracket."""
        if self._escaped:
            self._escaped = False
        elif self._quote:
            self._escaped = character == "\\"
            self._quote = "" if character == self._quote else self._quote
        elif character in self._quotes:
            self._quote = character
        elif character in "{[(":
            self.depth += 1
        elif character in "}])":
            self.depth -= 1
            return self.depth <= 0
        return False


class JsonArguments:
    """Reads the JSON text of an object, beginning with its first character."""

    def __init__(self) -> None:
        self._scanner = BracketScanner()

    def feed(self, text: str) -> tuple[str, str | None]:
        for position, character in enumerate(text, 1):
            if self._scanner.closes(character):
                return text[:position], text[position:]
        return text, None


class KeywordArguments:
    """Reads `name=value` pairs with JSON values, up to the bracket that closes the call. Python's words for
    true, false and null become JSON's."""

    def __init__(self) -> None:
        self._scanner = BracketScanner()
        self._name: str | None = ""
        self._word = ""
        self._has_begun = False

    def feed(self, text: str) -> tuple[str, str | None]:
        written = [] if self._has_begun else ["{"]
        self._has_begun = True
        for position, character in enumerate(text):
            if self._scanner.is_outside and character == ")":
                return "".join([*written, self._take_word(), "}"]), text[position:]
            written.append(self._read(character))
        return "".join(written), None

    def _read(self, character: str) -> str:
        if self._name is not None:
            if character != "=":
                self._name += character.strip()
                return ""
            name, self._name = self._name, None
            return json.dumps(name, ensure_ascii=False) + ": "
        if character.isalpha() and not self._scanner.in_string:
            self._word += character
            return ""
        before = self._take_word()
        if character == "," and self._scanner.is_outside:
            self._name = ""
            return before + ", "
        self._scanner.closes(character)
        return before + character

    def _take_word(self) -> str:
        word, self._word = self._word, ""
        return _WORDS.get(word, word)


class ElementArguments:
    """Reads an element for each parameter, up to the first text that begins none. Line breaks next to a value
    count as the format has them, other white space between elements counts as none."""

    def __init__(self, syntax: Parameters, types: ParameterTypes) -> None:
        before, after = syntax.name
        self._begin = before.strip()
        self._opening = re.compile(
            rf"\s*{flexible(before)}(?P<name>.*?)(?:(?P<other>{_before_value(syntax.typed)})"
            rf"|{_before_value(after)})"
            if syntax.typed
            else rf"\s*{flexible(before)}(?P<name>.*?){_before_value(after)}",
            re.DOTALL,
        )
        end = syntax.end.strip()
        self._ends = [f"\n{end}", end] if syntax.end.startswith("\n") else [end]
        self._takes_line = after.endswith("\n")
        self._says_type = bool(syntax.typed)
        self._types = types
        self._held = ""
        self._written: list[str] = []
        self._separator = "{"
        self._value: Collection[str] | None = None  # the types of the open parameter's value
        self._streams = False

    def feed(self, text: str) -> tuple[str, str | None]:
        self._held += text
        while self._read_value() if self._value is not None else self._open():
            pass
        rest = None
        if self._value is None and not self._may_open():
            self._written.append("{}" if self._separator == "{" else "}")
            rest = self._held.lstrip()
        written, self._written = "".join(self._written), []
        return written, rest

    def _may_open(self) -> bool:
        start = self._held.lstrip()
        return self._begin.startswith(start) or start.startswith(self._begin)

    def _open(self) -> bool:
        found = self._opening.match(self._held)
        if found is None or (self._takes_line and found.end() == len(self._held) and found[0][-1] != "\n"):
            return False
        name = found["name"].strip()
        self._held = self._held[found.end() :]
        if self._says_type:
            self._value = ("string",) if found["other"] is None else ()
        else:
            self._value = self._types.get(name, ("string", "any"))
        self._streams = tuple(self._value) == ("string",)
        opening = '"' if self._streams else ""
        self._written.append(f"{self._separator}{json.dumps(name, ensure_ascii=False)}: {opening}")
        self._separator = ", "
        return True

    def _read_value(self) -> bool:
        assert self._value is not None
        found = [(self._held.find(end), end) for end in self._ends if end in self._held]
        if found:
            position, end = min(found)
            value, self._held = self._held[:position], self._held[position + len(end) :]
            self._written.append(f'{escape(value)}"' if self._streams else to_json(value, self._value))
            self._value = None
            return True
        if self._streams:
            ready = len(self._held) - max(count_begun(self._held, end) for end in self._ends)
            self._written.append(escape(self._held[:ready]))
            self._held = self._held[ready:]
        return False


class NestedArguments:
    """Reads `name:value` pairs up to the brace that closes the call. Keys have no quotes; strings stand
    between two `quote` marks, and may contain anything else."""

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._held = ""
        self._brackets = ["{"]
        self._in_string = False
        self._expects_key = True
        self._has_begun = False

    def feed(self, text: str) -> tuple[str, str | None]:
        self._held += text
        written = [] if self._has_begun else ["{"]
        self._has_begun = True
        while self._held and (part := self._read()) is not None:
            written.append(part)
            if not self._brackets:
                return "".join(written), self._held
        return "".join(written), None

    def _read(self) -> str | None:
        """JSON for the beginning of the held text; None if more text is needed."""
        if self._in_string:
            return self._read_string()
        if self._held.startswith(self._quote):
            self._held, self._in_string = self._held[len(self._quote) :], True
            return '"'
        first = self._held[0]
        if first in _MARKS:
            return self._read_mark(first)
        ends = [place for mark in (*_MARKS, self._quote) if (place := self._held.find(mark)) > 0]
        if not ends:
            return None
        word, self._held = self._held[: min(ends)].strip(), self._held[min(ends) :]
        if self._expects_key and word:
            return json.dumps(word, ensure_ascii=False)
        return _WORDS.get(word, word)

    def _read_string(self) -> str | None:
        text, quote, rest = self._held.partition(self._quote)
        if quote:
            self._held, self._in_string = rest, False
            return f'{escape(text)}"'
        ready = len(self._held) - count_begun(self._held, self._quote)
        text, self._held = self._held[:ready], self._held[ready:]
        return escape(text) if text else None

    def _read_mark(self, mark: str) -> str:
        if mark in "{[":
            self._brackets.append(mark)
        elif mark in "}]":
            self._brackets.pop()
            if not self._brackets:  # the brace belongs to the call
                return "}"
        self._held = self._held[1:]
        self._expects_key = mark in "{," and self._brackets[-1] == "{"
        return f"{mark} " if mark in ":," else mark


def escape(text: str) -> str:
    """The text inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def to_json(text: str, types: Collection[str]) -> str:
    """JSON for a parameter's raw value: what it spells if the types allow that, or else a string."""
    given = text.strip()
    given = _WORDS.get(given, given)
    value = parse_json(given)
    if value is None and given != "null":
        value = _parse_literal(given)
        given = given if value is None else json.dumps(value, ensure_ascii=False)
    is_valid = value is not None or given == "null"
    if is_valid and not isinstance(value, str) and ("string" not in types or _fits(value, types)):
        return given
    if is_valid and "string" not in types:
        return given
    return json.dumps(text, ensure_ascii=False)


def _parse_literal(text: str) -> object:
    """A list or dict in Python's syntax; None for any other text."""
    if text[:1] not in ("[", "{"):
        return None
    try:
        value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return value


def _fits(value: object, types: Collection[str]) -> bool:
    match value:
        case None:
            own = {"null"}
        case bool():
            own = {"boolean"}
        case int():
            own = {"integer", "number"}
        case float():
            own = {"number"}
        case list():
            own = {"array"}
        case _:
            own = {"object"}
    return "any" in types or not own.isdisjoint(types)


def flexible(text: str) -> str:
    """A regex of the text that allows any white space where the text has some."""
    return r"\s*".join(map(re.escape, re.split(r"\s+", text)))


def _before_value(text: str) -> str:
    """A regex of the text before a value. Of white space at its end only a line break may be missing."""
    return flexible(text.rstrip("\n")) + ("\n?" if text.endswith("\n") else "")
