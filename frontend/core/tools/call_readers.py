"""Finds the end of a tool call's body in each dialect. Bodies arrive in pieces."""

from __future__ import annotations

import re
from typing import Protocol

from .brackets import BracketScanner
from .call_syntax import Call, is_json_object, json_calls, python_calls
from .tool_formats import CLOSING_TAGS, Dialect

_NAME_BEFORE_OBJECT = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\]\s*)?(?=\{)")


class CallReader(Protocol):
    """Takes time linear in the length of all pieces."""

    def feed(self, text: str) -> int | None:
        """How many characters of `text` belong to the body; None if all do and more may follow."""

    def calls(self, body: str) -> list[Call] | None:
        """The calls in the whole body; None if it is not a call."""


def reader_for(dialect: Dialect) -> CallReader:
    match dialect:
        case "hermes":
            return TaggedReader(CLOSING_TAGS["hermes"])
        case "llama_json":
            return JsonReader()
        case "mistral" | "mistral_named":
            return MistralReader()
        case "pythonic":
            return PythonReader()


class TaggedReader:
    """`{"name": …, "arguments": …}` up to a closing tag. The tag may also occur in the JSON's strings."""

    def __init__(self, closing_tag: str) -> None:
        self._tag = closing_tag
        self._matched = 0  # characters of the tag
        self._scanner = BracketScanner('"')

    def feed(self, text: str) -> int | None:
        for position, character in enumerate(text):
            if self._scanner.in_string:
                self._matched = 0
            elif character == self._tag[self._matched]:
                self._matched += 1
            else:
                self._matched = int(character == self._tag[0])
            if self._matched == len(self._tag):
                return position + 1
            self._scanner.closes(character)
        return None

    def calls(self, body: str) -> list[Call] | None:
        """The tag may be missing if the model ended right after the JSON."""
        return json_calls(body.strip().removesuffix(self._tag))


class JsonReader:
    """One JSON object; anything else ends the body at once."""

    def __init__(self) -> None:
        self._scanner = BracketScanner('"')

    def feed(self, text: str) -> int | None:
        return _bracketed(text, self._scanner, "{")

    def calls(self, body: str) -> list[Call] | None:
        return json_calls(body)


class PythonReader:
    """`[name(key=literal, …), …]`; anything else ends the body at once."""

    def __init__(self) -> None:
        self._scanner = BracketScanner("\"'")

    def feed(self, text: str) -> int | None:
        return _bracketed(text, self._scanner, "[")

    def calls(self, body: str) -> list[Call] | None:
        return python_calls(body)


class MistralReader:
    """A JSON array of calls, or (newer models) a name followed by its arguments."""

    def __init__(self) -> None:
        self._scanner = BracketScanner('"')
        self._named: bool | None = None

    def feed(self, text: str) -> int | None:
        for position, character in enumerate(text):
            if self._named is None and not character.isspace():
                self._named = character not in "[{"
            before_arguments = self._named and self._scanner.depth == 0 and character != "{"
            if not before_arguments and self._scanner.closes(character):
                return position + 1
        return None

    def calls(self, body: str) -> list[Call] | None:
        named = _NAME_BEFORE_OBJECT.match(body)
        if named is None:
            return json_calls(body)
        arguments = body[named.end() :].strip()
        return [Call(named[1], arguments)] if is_json_object(arguments) else None


def _bracketed(text: str, scanner: BracketScanner, bracket: str) -> int | None:
    for position, character in enumerate(text):
        if scanner.depth == 0 and not character.isspace() and character != bracket:
            return position
        if scanner.closes(character):
            return position + 1
    return None
