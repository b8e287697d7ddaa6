"""Reads calls that follow a grammar, and reports their arguments as they arrive."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from .brackets import BracketScanner
from .tool_formats import Dialect, ToolFormat


@dataclass(frozen=True, slots=True)
class Started:
    """A call of this function begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Argued:
    """More of the JSON text of the call's arguments."""

    fragment: str


Event = Started | Argued


class ArgumentsReader(Protocol):
    """Takes the text from the arguments' first character on."""

    def feed(self, text: str) -> tuple[str, int | None]:
        """JSON text, and how many characters of `text` belong to the arguments; None if all do."""


class LiveCalls:
    """The body of one tag: a call, or several. `rest` is the text after it, None until the tag ends."""

    def __init__(self, format: ToolFormat, names: Collection[str], tag: str) -> None:
        """`tag` is the text before the body; it may be empty."""
        self._format = format
        self._heads = {format.begin(name): name for name in names}
        self._ahead: Literal["first", "next", "arguments"] = "first"
        self._prefix = format.prefix.removeprefix(tag)
        self._held = ""
        self._arguments: ArgumentsReader = JsonArguments()
        self.rest: str | None = None

    def recognizes(self, body: str) -> bool | None:
        """Whether a call begins there; None if more text is needed to decide."""
        return self._found(self._prefix, body)

    def feed(self, text: str, final: bool) -> list[Event]:
        """Call it after `recognizes` has returned True for the beginning. `final`: no more text follows."""
        self._held += text
        events: list[Event] = []
        while self.rest is None and self._step(events, final):
            pass
        return events

    def _step(self, events: list[Event], final: bool) -> bool:
        """False if more text is needed."""
        if self._ahead == "arguments":
            return self._read_arguments(events)
        if self._ahead == "first":
            return self._begin(self._prefix, events)
        between = self._format.tail + (self._format.between or "\0")
        if self._found(between, self._held):
            return self._begin(between, events)
        end = self._format.tail + self._format.suffix
        if self._held.startswith(end):
            self.rest = self._held[len(end) :]
        elif final or not (end.startswith(self._held) or self._found(between, self._held) is None):
            self.rest = "" if final else self._held
        return False

    def _begin(self, lead: str, events: list[Event]) -> bool:
        held = self._held[len(lead) :]
        head = max((head for head in self._heads if held.startswith(head)), key=len)
        events.append(Started(self._heads[head]))
        self._held = held[len(head) :]
        self._ahead = "arguments"
        self._arguments = KeywordArguments() if self._format.name == "pythonic" else JsonArguments()
        return True

    def _read_arguments(self, events: list[Event]) -> bool:
        fragment, length = self._arguments.feed(self._held)
        if fragment:
            events.append(Argued(fragment))
        self._held = "" if length is None else self._held[length:]
        if length is None:
            return False
        self._ahead = "next"
        return True

    def _found(self, lead: str, text: str) -> bool | None:
        """Whether `text` begins with `lead`, a head and arguments; None if more text is needed to tell."""
        may = False
        for head in self._heads:
            whole = lead + head
            if text.startswith(whole) and _follows(self._format.name, text[len(whole) :]):
                return True
            may = may or whole.startswith(text) or text == whole
        return None if may else False


def _follows(dialect: Dialect, rest: str) -> bool:
    """Whether arguments begin there."""
    return bool(rest) and (dialect == "pythonic" or rest[0] == "{")


class JsonArguments:
    def __init__(self) -> None:
        self._scanner = BracketScanner('"')

    def feed(self, text: str) -> tuple[str, int | None]:
        for position, character in enumerate(text):
            if self._scanner.closes(character):
                return text[: position + 1], position + 1
        return text, None


class KeywordArguments:
    """`name=value` with JSON values, up to the bracket that closes the call."""

    def __init__(self) -> None:
        self._scanner = BracketScanner('"')
        self._name: str | None = ""
        self._opened = False

    def feed(self, text: str) -> tuple[str, int | None]:
        written = [] if self._opened else ["{"]
        self._opened = True
        for position, character in enumerate(text):
            if self._scanner.depth == 0 and not self._scanner.in_string and character == ")":
                return "".join([*written, "}"]), position
            written.append(self._read(character))
        return "".join(written), None

    def _read(self, character: str) -> str:
        if self._name is None:
            if character == "," and self._scanner.depth == 0 and not self._scanner.in_string:
                self._name = ""
                return ", "
            self._scanner.closes(character)
            return character
        if character != "=":
            self._name += character.strip()
            return ""
        name, self._name = self._name, None
        return json.dumps(name, ensure_ascii=False) + ": "
