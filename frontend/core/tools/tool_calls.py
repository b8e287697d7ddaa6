"""Finds the tool calls in a model's text while it streams."""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ..text.reasoning import count_begun
from .call_body import CallBody, CallPart
from .call_syntax import Dialect, parse_calls
from .tool_check import CallCheck
from .tool_formats import ToolFormat

MIN_MARKUP = 3  # characters of an incomplete tag that count as markup at the end of a cut reply
_BETWEEN_CALLS = " \t\r\n;,"


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of call number `index`. The first part has `id` and `name`. The fragments join to JSON text."""

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
    `names` (all tools) is sent as far as it goes.

    `calls_only`: the reply has no content. `may_answer`: the reply is either calls or an answer of a given
    form, as its beginning tells; an answer has no calls.
    """

    def __init__(
        self,
        format: ToolFormat,
        fits: CallCheck,
        enforced: Collection[str] = (),
        *,
        names: Collection[str] = (),
        calls_only: bool = False,
        may_answer: bool = False,
    ) -> None:
        self._format = format
        self._syntax = format.syntax
        self._fits = fits
        self._enforced = frozenset(enforced)
        self._names = names
        self._calls_only = calls_only
        self._may_answer = may_answer
        self._answers = False
        self._is_cut = False
        self._body: CallBody | None = None
        self._held = ""
        self._may_be_bare = True  # at the start and after a call, a bracket alone begins a call
        self.calls = 0

    def may_check(self, several: bool) -> bool:
        """Whether the next push may complete a call that `fits` checks. A call has more than one token, so it
        completes only if the push has several tokens' text (`several`) or the call has begun."""
        if self._body is not None:
            return not self._body.streams
        has_several = several or (self._may_answer and bool(self._held))
        return has_several and not self._enforced.issuperset(self._names)

    def push(self, text: str, final: bool, cut: bool = False) -> list[Delta]:
        """Reads more text. `final`: no more text follows. `cut`: a limit or a stop string ended the text."""
        self._held += text
        self._is_cut = cut
        if self._may_answer:
            begins_call = self._begins_call(final)
            if begins_call is None:
                return []
            self._may_answer, self._answers = False, not begins_call
        if self._answers:
            answer, self._held = self._held, ""
            return [ContentDelta(answer)] if answer else []
        deltas: list[Delta] = []
        while self._read_content(deltas, final) if self._body is None else self._read_body(deltas, final):
            pass
        calls_only = self._calls_only and cut
        return [delta for delta in _join(deltas) if not (calls_only and isinstance(delta, ContentDelta))]

    def _begins_call(self, final: bool) -> bool | None:
        """Whether the reply begins with a call. An answer wins if both are possible. None if more text is
        needed."""
        start = self._held.lstrip()
        if start.startswith(self._syntax.tags):
            return True
        is_bare = not self._format.prefix.startswith(self._syntax.tags)
        bare = CallBody(self._format, "", self._names).begins_call(start) if is_bare else False
        begins_tag = bool(start) and any(tag.startswith(start) for tag in self._syntax.tags)
        if bare is None or begins_tag or not start:
            return (begins_tag and self._is_cut) if final else None
        return bare

    def _read_content(self, deltas: list[Delta], final: bool) -> bool:
        """Reads text outside of calls. Returns whether the body of calls begins."""
        if self._may_be_bare:
            lead = self._lead()
            rest = self._held[lead:]
            if self._syntax.bracket and rest.startswith(self._syntax.bracket):
                self._begin(0, lead)
                return True
            if not final and (not rest or (self.calls and self._syntax.closing_tag.startswith(rest))):
                return False
            self._may_be_bare = False
            self._held = rest if self.calls else self._held
        found = [tag for tag in self._syntax.tags if tag in self._held]
        if not found:
            deltas.append(ContentDelta(self._take_content(final)))
            return False
        tag = min(found, key=self._held.index)
        start = self._held.index(tag)
        content = self._held[:start].rstrip()
        deltas.append(ContentDelta(content))
        self._begin(len(content), start + len(tag))
        return True

    def _take_content(self, final: bool) -> str:
        """Removes and returns the held text before any markup or beginning of markup."""
        begun = max(count_begun(self._held, tag) for tag in self._syntax.tags)
        if final and not (self._is_cut and begun >= MIN_MARKUP):
            ready, self._held = self._held, ""
            return ready
        ready = self._held[: len(self._held) - begun].rstrip()
        self._held = "" if final else self._held[len(ready) :]
        return ready

    def _lead(self) -> int:
        """Length of the white space at the start. After a call, separators and closing tags count too."""
        if not self.calls:
            return len(self._held) - len(self._held.lstrip())
        rest = self._held.lstrip(_BETWEEN_CALLS)
        rest = rest.removeprefix(self._syntax.closing_tag).lstrip(_BETWEEN_CALLS)
        return len(self._held) - len(rest)

    def _begin(self, start: int, body: int) -> None:
        """Begins a body of calls at position `body` of the held text. The markup that opens it is at
        `start`."""
        self._body = CallBody(self._format, self._held[start:body], self._enforced)
        self._held = self._held[body:]

    def _read_body(self, deltas: list[Delta], final: bool) -> bool:
        """Reads text of a body of calls. Returns whether the body ends."""
        body = self._body
        assert body is not None
        held, self._held = self._held, ""
        deltas += self._number(body.push(held, final))
        if body.rest is None:
            return False
        self._held, self._body = body.rest, None
        self._may_be_bare = bool(body.streams) or self._add_calls(body, deltas)
        return True

    def _add_calls(self, body: CallBody, deltas: list[Delta]) -> bool:
        """Adds the calls of a collected body, or else its text. Returns whether the body has calls."""
        calls = parse_calls(self._format.name, body.text)
        if calls and all(map(self._fits, calls)):
            deltas += self._number(calls)
            return True
        if self._is_cut and not body.has_end and self._add_cut_call(body, deltas):
            return True
        deltas.append(ContentDelta(body.opening + body.text))
        return False

    def _add_cut_call(self, body: CallBody, deltas: list[Delta]) -> bool:
        """Adds the incomplete call at the end of a cut reply. Returns False if the body may not be a call."""
        again = CallBody(self._format, body.opening, self._names)
        begins = again.begins_call(body.text)
        if begins:
            deltas += self._number(again.push(body.text, final=True))
        return begins or (begins is None and bool(body.tag))

    def _number(self, parts: Iterable[CallPart]) -> Iterator[ToolCallDelta]:
        for name, arguments in parts:
            self.calls += name is not None
            id = None if name is None else _new_id(self._format.name)
            yield ToolCallDelta(self.calls - 1, id, name, arguments)


def _join(deltas: Iterable[Delta]) -> list[Delta]:
    """Merges neighbours that continue the same text or call."""
    found: list[Delta] = []
    for delta in deltas:
        match found[-1:], delta:
            case _, ContentDelta("") | ToolCallDelta(_, None, None, ""):
                pass
            case [ContentDelta(before)], ContentDelta(text):
                found[-1] = ContentDelta(before + text)
            case [ToolCallDelta(index, id, name, before)], ToolCallDelta(_, None, None, fragment):
                found[-1] = ToolCallDelta(index, id, name, before + fragment)
            case _:
                found.append(delta)
    return found


def _new_id(dialect: Dialect) -> str:
    """A random id of a call. Mistral's templates accept only nine letters and digits."""
    alphabet = string.ascii_letters + string.digits
    length, prefix = (9, "") if dialect in ("mistral", "mistral_named") else (24, "call_")
    return prefix + "".join(secrets.choice(alphabet) for _ in range(length))
