"""Reads the tool calls that follow a tag or a bracket, while their text arrives."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from .call_syntax import BodyEnd, BracketScanner
from .tool_formats import ToolFormat

CallPart = tuple[str | None, str]
"""A function's name and JSON text of its arguments. The name is None if the text continues a call."""


class CallBody:
    """The calls after `opening`, which is a tag with the white space before it, or empty.

    If the text begins exactly as the format writes a call of a function in `streamed`, `push` returns the
    calls in parts, as they arrive. Any other body is collected in `text`.
    """

    def __init__(self, format: ToolFormat, opening: str, streamed: Collection[str]) -> None:
        self.opening = opening
        self.tag = next((tag for tag in format.syntax.tags if opening.endswith(tag)), "")
        self.streams: bool | None = None  # None: more text is needed to tell
        self.has_end = False  # whether the body's own end has come, not only the reply's end
        self.rest: str | None = None  # the text after the body, None until the body ends
        self._format = format
        self._streamed = streamed
        self._heads: dict[str, str] = {}
        self._expect_head(format.prefix.removeprefix(self.tag))
        self._arguments: JsonArguments | KeywordArguments | None = None
        self._end = BodyEnd(format.name)
        self._held = ""
        self._collected: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._collected)

    def begins_call(self, text: str) -> bool | None:
        """Whether the text begins with a call of a streamed function. None if more text is needed to tell."""
        head = self._find_head(text)
        return None if head is None else bool(head)

    def push(self, text: str, final: bool) -> list[CallPart]:
        """Reads the next text. `final`: no more text follows."""
        self._held += text
        if self.streams is None:
            begins = self.begins_call(self._held)
            if begins is None and not final:
                return []
            self.streams = bool(begins)
        if self.streams:
            return list(self._stream(final))
        held, self._held = self._held, ""
        length = self._end.find(held)
        self._collected.append(held[:length])
        self.has_end = length is not None
        if length is not None or final:
            self.rest = "" if length is None else held[length:]
        return []

    def _stream(self, final: bool) -> Iterator[CallPart]:
        while True:
            if self._arguments is not None:
                fragment, length = self._arguments.feed(self._held)
                yield None, fragment
                self._held = "" if length is None else self._held[length:]
                if length is None:
                    return
                self._arguments = None
                self._expect_next()
            head = self._find_head(self._held)
            if not head:
                break
            yield self._heads[head], ""
            self._held = self._held[len(head) :]
            self._arguments = KeywordArguments() if self._format.name == "pythonic" else JsonArguments()
        end = self._format.tail + self._format.suffix
        if self._held.startswith(end):
            self.rest = self._held[len(end) :]
        elif final or not (head is None or end.startswith(self._held)):
            self.rest = "" if final else self._held

    def _expect_head(self, lead: str) -> None:
        """Expects calls to begin with `lead`, which stands before their heads."""
        self._heads = {lead + self._format.begin(name): name for name in self._streamed}

    def _expect_next(self) -> None:
        if self._format.between is None:
            self._heads = {}
        else:
            self._expect_head(self._format.tail + self._format.between)

    def _find_head(self, text: str) -> str | None:
        """The head with which the text begins, if arguments follow. Empty without one, None if more text is
        needed."""
        may_come = False
        for head in self._heads:
            following = text[len(head) :]
            if following and text.startswith(head):
                if self._format.name == "pythonic" or following[0] == "{":
                    return head
            elif head.startswith(text):
                may_come = True
        return None if may_come else ""


class JsonArguments:
    """Reads the JSON text of an object, beginning with its first character."""

    def __init__(self) -> None:
        self._scanner = BracketScanner()

    def feed(self, text: str) -> tuple[str, int | None]:
        """Returns JSON text, and how many characters of `text` belong to the arguments (None: all)."""
        for position, character in enumerate(text):
            if self._scanner.closes(character):
                return text[: position + 1], position + 1
        return text, None


class KeywordArguments:
    """Reads `name=value` pairs with JSON values, up to the bracket that closes the call."""

    def __init__(self) -> None:
        self._scanner = BracketScanner()
        self._name: str | None = ""
        self._has_begun = False

    def feed(self, text: str) -> tuple[str, int | None]:
        """As `JsonArguments.feed`, but turns keyword arguments into members of an object."""
        written = [] if self._has_begun else ["{"]
        self._has_begun = True
        for position, character in enumerate(text):
            if self._scanner.is_outside and character == ")":
                return "".join([*written, "}"]), position
            written.append(self._read(character))
        return "".join(written), None

    def _read(self, character: str) -> str:
        if self._name is None:
            if character == "," and self._scanner.is_outside:
                self._name = ""
                return ", "
            self._scanner.closes(character)
            return character
        if character != "=":
            self._name += character.strip()
            return ""
        name, self._name = self._name, None
        return json.dumps(name, ensure_ascii=False) + ": "
