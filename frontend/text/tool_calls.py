"""Finding the tool calls in a model's text while it streams."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass

from .brackets import BracketScanner
from .call_readers import CallReader, reader_for
from .call_syntax import Call
from .markers import overlap
from .tool_check import CallCheck, check_against
from .tool_formats import CLOSING_TAGS, TAGS, Dialect, ToolFormat, call_grammar, detect_format

__all__ = [
    "ContentDelta",
    "ImposedCallParser",
    "ToolCallDelta",
    "ToolCallParser",
    "ToolFormat",
    "call_grammar",
    "check_against",
    "detect_format",
]

_BARE_BRACKET: dict[Dialect, str] = {"llama_json": "{", "pythonic": "["}
_BETWEEN_CALLS = " \t\r\n;,"
_HEADER = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of call number `index`. The first has `id` and `name`; the fragments join to JSON text."""

    index: int
    id: str | None
    name: str | None
    arguments_fragment: str


Delta = ContentDelta | ToolCallDelta


class ToolCallParser:
    """For replies that may call tools: content and calls in any order.

    A call is sent whole, once it is complete and found good by `fits`. Whatever else looked like a call
    comes back as content. White space around calls belongs to neither.
    """

    def __init__(self, format: ToolFormat, fits: CallCheck) -> None:
        self._dialect = format.name
        self._fits = fits
        self._closing_tag = CLOSING_TAGS.get(format.name, "")
        self._reader: CallReader | None = None
        self._opening = ""  # the text before the body that is content if there is no call
        self._body: list[str] = []
        self._held = ""
        self._may_be_bare = True  # at the start and behind a call a bracket alone begins a call
        self.calls = 0

    def push(self, text: str, final: bool) -> list[Delta]:
        """`final`: no more text follows."""
        self._held += text
        deltas: list[Delta] = []
        progress = True
        while progress:
            step = self._read_content if self._reader is None else self._read_body
            progress = step(deltas, final)
        return list(_joined(deltas))

    def _read_content(self, deltas: list[Delta], final: bool) -> bool:
        """True if a body begins."""
        if self._may_be_bare:
            lead = self._lead()
            rest = self._held[lead:]
            bracket = _BARE_BRACKET.get(self._dialect)
            if bracket and rest.startswith(bracket):
                return self._begin(0, lead)
            if not final and (not rest or (self.calls and self._closing_tag.startswith(rest))):
                return False
            self._may_be_bare = False
            self._held = rest if self.calls else self._held
        tag = self._first_tag()
        if tag is not None:
            start = self._held.index(tag)
            content = self._held[:start].rstrip()
            deltas.append(ContentDelta(content))
            return self._begin(len(content), start + len(tag))
        safe = self._held[: len(self._held) - max(overlap(self._held, tag) for tag in TAGS[self._dialect])]
        ready = self._held if final else safe.rstrip()
        deltas.append(ContentDelta(ready))
        self._held = self._held[len(ready) :]
        return False

    def _lead(self) -> int:
        """Length of the white space, and behind a call of separators and closing tags, at the start."""
        if not self.calls:
            return len(self._held) - len(self._held.lstrip())
        rest = self._held.lstrip(_BETWEEN_CALLS)
        if self._closing_tag:
            rest = rest.removeprefix(self._closing_tag).lstrip(_BETWEEN_CALLS)
        return len(self._held) - len(rest)

    def _first_tag(self) -> str | None:
        found = [tag for tag in TAGS[self._dialect] if tag in self._held]
        return min(found, key=self._held.index, default=None)

    def _begin(self, start: int, body: int) -> bool:
        """The text held from `start` on leads to a body at `body`."""
        self._opening = self._held[start:body]
        self._held = self._held[body:]
        self._reader = reader_for(self._dialect)
        self._body = []
        return True

    def _read_body(self, deltas: list[Delta], final: bool) -> bool:
        """True if the body ends."""
        assert self._reader is not None
        length = self._reader.feed(self._held)
        self._body.append(self._held[:length])
        self._held = "" if length is None else self._held[length:]
        if length is None and not final:
            return False
        body = "".join(self._body)
        calls = self._reader.calls(body)
        self._reader = None
        if calls and all(self._fits(call) for call in calls):
            deltas.extend(self._numbered(call) for call in calls)
            self._may_be_bare = True
        else:
            deltas.append(ContentDelta(self._opening + body))
            self._may_be_bare = False
        return True

    def _numbered(self, call: Call) -> ToolCallDelta:
        self.calls += 1
        return ToolCallDelta(self.calls - 1, _new_id(self._dialect), call.name, call.arguments)


class ImposedCallParser:
    """For replies that a grammar holds to one call (`call_grammar`): its arguments stream.

    A reply that ends before its arguments begin comes back as content.
    """

    def __init__(self, format: ToolFormat) -> None:
        self._format = format
        self._scanner = BracketScanner('"')
        self._header = ""
        self._ended = False
        self.calls = 0

    def push(self, text: str, final: bool) -> list[Delta]:
        """`final`: no more text follows."""
        if self.calls:
            return self._arguments(text)
        self._header += text
        match = _HEADER.match(self._header.removeprefix(self._format.prefix))
        if match is not None:
            self.calls = 1
            start = ToolCallDelta(0, _new_id(self._format.name), json.loads(match[1]), "")
            return [start, *self._arguments(match.string[match.end() :])]
        return [ContentDelta(self._header)] if final and self._header else []

    def _arguments(self, text: str) -> list[Delta]:
        if self._ended:
            return []
        for position, character in enumerate(text):
            if self._scanner.closes(character):
                self._ended = True
                text = text[: position + 1]
                break
        return [ToolCallDelta(0, None, None, text)] if text else []


def _joined(deltas: Iterable[Delta]) -> Iterable[Delta]:
    content = ""
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            content += delta.text
            continue
        if content:
            yield ContentDelta(content)
            content = ""
        yield delta
    if content:
        yield ContentDelta(content)


def _new_id(dialect: Dialect) -> str:
    """Mistral's templates accept nothing but nine letters and digits."""
    alphabet = string.ascii_letters + string.digits
    length, prefix = (9, "") if dialect == "mistral" else (24, "call_")
    return prefix + "".join(secrets.choice(alphabet) for _ in range(length))
