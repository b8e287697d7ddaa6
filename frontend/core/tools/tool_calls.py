"""Finds the tool calls in a model's text while it streams."""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ..text.markers import overlap
from .call_readers import CallReader, reader_for
from .call_syntax import Call
from .live_calls import Event, LiveCalls, Started
from .tool_check import CallCheck, check_against
from .tool_formats import CLOSING_TAGS, TAGS, Dialect, ToolFormat, detect_format

__all__ = [
    "ContentDelta",
    "Delta",
    "ToolCallDelta",
    "ToolCallParser",
    "ToolFormat",
    "check_against",
    "detect_format",
]

_BARE_BRACKET: dict[Dialect, str] = {"llama_json": "{", "pythonic": "["}
SURELY_MARKUP = 3  # characters of a tag: if a limit cuts the text after at least so many, they are dropped
_BETWEEN_CALLS = " \t\r\n;,"


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
    """Reads replies that may call tools: content and calls in any order.

    The calls of tools that are `enforced` follow their grammar, so their arguments stream. Any other call is
    sent whole, once it is complete and `fits` accepts it. Text that only looked like a call becomes content.
    White space around calls belongs to neither. If a limit cuts the reply, an incomplete call of a tool in
    `names` (all tools) is sent as far as it goes. `calls_only`: the reply has no content.
    """

    def __init__(
        self,
        format: ToolFormat,
        fits: CallCheck,
        enforced: Collection[str] = (),
        *,
        names: Collection[str] = (),
        calls_only: bool = False,
    ) -> None:
        self._format = format
        self._dialect = format.name
        self._fits = fits
        self._enforced = frozenset(enforced)
        self._names = names
        self._calls_only = calls_only
        self._is_cut = False
        self._live: LiveCalls | None = None
        self._closing_tag = CLOSING_TAGS.get(format.name, "")
        self._reader: CallReader | None = None
        self._opening = ""  # the text before the body; it is content if there is no call
        self._body: list[str] = []
        self._held = ""
        self._may_be_bare = True  # at the start and after a call, a bracket alone begins a call
        self.calls = 0

    def may_check(self, several: bool) -> bool:
        """Whether the next push may complete a call that `fits` checks. A call has more than one token, so
        the push has the text of `several`, or the call has begun."""
        if self._reader is not None:
            return self._live is None
        return several and not self._enforced.issuperset(self._names)

    def push(self, text: str, final: bool, cut: bool = False) -> list[Delta]:
        """`final`: no more text follows; `cut`: because a limit or a stop string ended it."""
        self._held += text
        self._is_cut = cut
        deltas: list[Delta] = []
        progress = True
        while progress:
            step = self._read_content if self._reader is None else self._read_body
            progress = step(deltas, final)
        calls_only = self._calls_only and cut
        return [delta for delta in _joined(deltas) if not (calls_only and isinstance(delta, ContentDelta))]

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
        deltas.append(ContentDelta(self._take_content(final)))
        return False

    def _take_content(self, final: bool) -> str:
        """The part of the held text that is not markup or the beginning of it."""
        begun = max(overlap(self._held, tag) for tag in TAGS[self._dialect])
        if final and not (self._is_cut and begun >= SURELY_MARKUP):
            ready, self._held = self._held, ""
            return ready
        ready = self._held[: len(self._held) - begun].rstrip()
        self._held = "" if final else self._held[len(ready) :]
        return ready

    def _lead(self) -> int:
        """Length of the white space at the start; after a call also of separators and closing tags."""
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
        """Begins a body at `body`, which the held text from `start` on introduces."""
        self._opening = self._held[start:body]
        self._held = self._held[body:]
        self._reader = reader_for(self._dialect)
        self._live = None
        self._body = []
        return True

    def _read_body(self, deltas: list[Delta], final: bool) -> bool:
        """True if the body ends."""
        if self._live is None and not self._body:
            live = LiveCalls(self._format, self._enforced, self._tag)
            recognized = live.recognizes(self._held)
            if recognized is None and not final:
                return False
            self._live = live if recognized else None
        return self._read_whole(deltas, final) if self._live is None else self._read_live(deltas, final)

    def _read_live(self, deltas: list[Delta], final: bool) -> bool:
        """True if the body ends."""
        assert self._live is not None
        held, self._held = self._held, ""
        deltas += self._deltas_of(self._live.feed(held, final))
        if self._live.rest is None:
            return False
        self._held = self._live.rest
        self._live = self._reader = None
        self._may_be_bare = True
        return True

    def _read_whole(self, deltas: list[Delta], final: bool) -> bool:
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
        elif not (self._is_cut and length is None and self._read_cut(deltas, body)):
            deltas.append(ContentDelta(self._opening + body))
            self._may_be_bare = False
        return True

    def _read_cut(self, deltas: list[Delta], body: str) -> bool:
        """False if the body is not, or not certainly, the beginning of a call."""
        live = LiveCalls(self._format, self._names, self._tag)
        recognized = live.recognizes(body)
        if recognized:
            deltas += self._deltas_of(live.feed(body, final=True))
        return recognized or (recognized is None and bool(self._tag))

    @property
    def _tag(self) -> str:
        """The tag that introduces the body, if any."""
        return next((tag for tag in TAGS[self._dialect] if self._opening.endswith(tag)), "")

    def _deltas_of(self, events: Iterable[Event]) -> Iterator[Delta]:
        for event in events:
            if isinstance(event, Started):
                yield self._numbered(Call(event.name, ""))
            else:
                yield ToolCallDelta(self.calls - 1, None, None, event.fragment)

    def _numbered(self, call: Call) -> ToolCallDelta:
        self.calls += 1
        return ToolCallDelta(self.calls - 1, _new_id(self._dialect), call.name, call.arguments)


def _joined(deltas: Iterable[Delta]) -> list[Delta]:
    """Merges neighbours that continue the same text or call."""
    found: list[Delta] = []
    for delta in deltas:
        match found[-1:], delta:
            case _, ContentDelta(""):
                pass
            case [ContentDelta(before)], ContentDelta(text):
                found[-1] = ContentDelta(before + text)
            case [ToolCallDelta(index, id, name, before)], ToolCallDelta(_, None, None, fragment):
                found[-1] = ToolCallDelta(index, id, name, before + fragment)
            case _:
                found.append(delta)
    return found


def _new_id(dialect: Dialect) -> str:
    """Mistral's templates accept nothing but nine letters and digits."""
    alphabet = string.ascii_letters + string.digits
    length, prefix = (9, "") if dialect in ("mistral", "mistral_named") else (24, "call_")
    return prefix + "".join(secrets.choice(alphabet) for _ in range(length))
