"""Splits a model's text into reasoning, content and tool calls while it streams."""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from ..text.reasoning import ReasoningFormat, count_begun
from .call_arguments import ParameterTypes
from .call_body import CallBody, CallPart
from .call_format import ToolFormat
from .call_syntax import parse_calls
from .tool_check import CallCheck

MIN_MARKUP = 3  # characters of an incomplete tag that count as markup at the end of a cut reply
_BETWEEN_CALLS = " \t\r\n;,"


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


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


Delta = ReasoningDelta | ContentDelta | ToolCallDelta


class ToolReading(NamedTuple):
    """How to find a reply's calls.

    The calls of tools that are `enforced` follow their grammar, so their arguments stream. Any other call is
    sent whole, once it is complete and `fits` accepts it. If a limit cuts the reply, an incomplete call of a
    tool in `names` (all tools) is sent as far as it goes. `types` has the types of each tool's parameters.

    `calls_only`: the reply has no content. `may_answer`: the reply is either calls or an answer of a given
    form, as its beginning tells; an answer has no calls.
    """

    format: ToolFormat
    fits: CallCheck
    enforced: frozenset[str] = frozenset()
    names: Collection[str] = ()
    calls_only: bool = False
    may_answer: bool = False
    types: Mapping[str, ParameterTypes] = MappingProxyType({})

    def types_of(self, name: str) -> ParameterTypes:
        return self.types.get(name, MappingProxyType({}))


class ReplyParser:
    """Reads one choice's text: reasoning, content and calls, in any order.

    Text that only looked like a call stays content, or reasoning. White space around calls belongs to
    neither, and so do line breaks next to the marks of reasoning. A call inside of reasoning is found once it
    is complete and fits its tool, because no grammar follows reasoning.
    """

    def __init__(
        self,
        reasoning: ReasoningFormat | None = None,
        tools: ToolReading | None = None,
        *,
        starts_inside: bool = False,
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._tags = tools.format.tags if tools is not None else ()
        starts = "start" if reasoning is not None else "content"
        self._region = "reasoning" if starts_inside else starts
        self._may_answer = tools is not None and tools.may_answer
        self._answers = False
        self._is_cut = False
        self._body: CallBody | None = None
        self._held = ""
        self._trims = starts_inside  # whether to drop line breaks until other text comes
        self._may_be_bare = tools is not None  # at the start and after a call, a bracket alone begins a call
        self._reasons_with_calls = True  # until a call in the reasoning has turned out to be none at the end
        self.calls = 0
        self.ends = 0
        """how often reasoning has ended"""

    @property
    def is_reasoning(self) -> bool:
        return self._region == "reasoning"

    def may_check(self, several: bool) -> bool:
        """Whether the next push may complete a call that is checked. A call has more than one token, so it
        completes only if the push has several tokens' text (`several`) or the call has begun."""
        if self._body is not None:
            return not self._body.streams
        if self._tools is None:
            return False
        has_several = several or (self._may_answer and bool(self._held))
        return has_several and (self.is_reasoning or not self._tools.enforced.issuperset(self._tools.names))

    def push(self, text: str, final: bool, cut: bool = False) -> list[Delta]:
        """Reads more text. `final`: no more text follows. `cut`: a limit or a stop string ended the text."""
        self._held += text
        self._is_cut = cut
        deltas: list[Delta] = []
        while self._read(deltas, final):
            pass
        calls_only = cut and self._tools is not None and self._tools.calls_only
        return [delta for delta in _join(deltas) if not (calls_only and isinstance(delta, ContentDelta))]

    def _read(self, deltas: list[Delta], final: bool) -> bool:
        """Reads the beginning of the held text. Returns whether to go on with the rest."""
        if self._body is not None:
            return self._read_body(self._body, deltas, final)
        if self._region == "start":
            return self._begin_region(final)
        if self._trims:
            self._held = self._held.lstrip("\n")
            self._trims = not self._held
        if self._region == "reasoning":
            return self._read_reasoning(deltas, final)
        return self._read_content(deltas, final)

    def _begin_region(self, final: bool) -> bool:
        assert self._reasoning is not None
        seen, start = self._held.lstrip(), self._reasoning.start
        if seen.startswith(start):
            self._region, self._held, self._trims = "reasoning", seen[len(start) :], True
        elif final or not start.startswith(seen):
            self._region = "content"
        return self._region != "start"

    def _read_reasoning(self, deltas: list[Delta], final: bool) -> bool:
        assert self._reasoning is not None
        end = self._reasoning.end
        mark = self._find_first([end, *(self._tags if self._reasons_with_calls else ())], final)
        if mark is None:
            return False
        if not mark:
            spaces = None if self._tags else "\n"
            deltas.append(ReasoningDelta(self._take_text(final, [end, *self._tags], spaces)))
            return False
        before, _, after = self._held.partition(mark)
        if mark == end:
            deltas.append(ReasoningDelta(before.rstrip("\n")))
            self._region, self._held, self._trims = "content", after, True
            self.ends += 1
            return True
        deltas.append(ReasoningDelta(before.rstrip()))
        self._begin_body(len(before.rstrip()), len(before) + len(mark))
        return True

    def _read_content(self, deltas: list[Delta], final: bool) -> bool:
        """Reads text outside of reasoning and calls."""
        silent = self._reasoning.silent if self._reasoning is not None else ()
        if self._may_answer and not self._decide(final):
            return False
        if self._answers:
            mark = self._find_first(silent, final)
            return self._take_mark(deltas, mark, silent, final)
        if self._may_be_bare and self._tools is not None:
            lead, bracket = self._lead(), self._tools.format.bracket
            rest, known = self._held[lead:], bracket.lstrip()
            if bracket and rest.startswith(known):
                self._begin_body(0, max(0, lead + len(known) - len(bracket)))
                return True
            begins = known.startswith(rest) or (
                self.calls and self._tools.format.closing_tag.startswith(rest)
            )
            if not final and (not rest or begins):
                return False
            self._may_be_bare = False
            self._held = rest if self.calls else self._held
        starts = (self._reasoning.start,) if self._reasoning is not None and self._reasoning.repeats else ()
        marks = (*self._tags, *silent, *starts)
        return self._take_mark(deltas, self._find_first(marks, final), marks, final)

    def _take_mark(self, deltas: list[Delta], mark: str | None, marks: Collection[str], final: bool) -> bool:
        """Takes the held text up to the mark; without one (an empty mark), the text before a possible one."""
        if mark is None:
            return False
        if not mark:
            deltas.append(ContentDelta(self._take_text(final, marks, None if self._tags else "")))
            return False
        before, _, after = self._held.partition(mark)
        if mark in self._tags and not self._answers:
            content = before.rstrip()
            deltas.append(ContentDelta(content))
            self._begin_body(len(content), len(before) + len(mark))
            return True
        is_reasoning = self._reasoning is not None and mark == self._reasoning.start
        deltas.append(ContentDelta(before.rstrip("\n")))
        self._held, self._trims = after, True
        self._region = "reasoning" if is_reasoning else "content"
        self._may_be_bare = self._tools is not None and not is_reasoning
        return True

    def _find_first(self, marks: Iterable[str], final: bool) -> str | None:
        """The first mark in the held text, the longest of those that begin there. Empty without one; None if
        more text may make it a longer one."""
        found = [(self._held.index(mark), -len(mark), mark) for mark in marks if mark in self._held]
        if not found:
            return ""
        start, _, first = min(found)
        rest = self._held[start:]
        may_grow = any(mark.startswith(rest) and len(mark) > len(rest) for mark in marks)
        return None if may_grow and not final else first

    def _take_text(self, final: bool, marks: Collection[str], spaces: str | None) -> str:
        """Removes and returns the held text before the beginning of a mark, without `spaces` (None: any white
        space) at its end."""
        begun = max((count_begun(self._held, mark) for mark in marks), default=0)
        if final and not (self._is_cut and begun >= MIN_MARKUP and self._region == "content"):
            ready, self._held = self._held, ""
            return ready
        ready = self._held[: len(self._held) - begun]
        ready = ready if spaces == "" and not begun else ready.rstrip(spaces or None)
        self._held = "" if final else self._held[len(ready) :]
        return ready

    def _decide(self, final: bool) -> bool:
        """Decides between calls and an answer; an answer wins if both are possible. Returns False if more
        text is needed."""
        begins_call = self._begins_call(final)
        if begins_call is None:
            return False
        self._may_answer, self._answers = False, not begins_call
        return True

    def _begins_call(self, final: bool) -> bool | None:
        """Whether the reply begins with a call. None if more text is needed."""
        assert self._tools is not None
        format, start = self._tools.format, self._held.lstrip()
        if start.startswith(self._tags):
            return True
        is_bare: bool | None = False
        if format.tag_of(format.form) is None:
            spaces = format.bracket[: len(format.bracket) - len(format.bracket.lstrip())]
            is_bare = self._new_body("", self._tools.names).begins_call(spaces + start)
        begins_tag = bool(start) and any(tag.startswith(start) for tag in self._tags)
        if is_bare is None or begins_tag or not start:
            return (begins_tag and self._is_cut) if final else None
        return is_bare

    def _lead(self) -> int:
        """Length of the white space at the start. After a call, separators and closing tags count too."""
        if not self.calls or self._tools is None:
            return len(self._held) - len(self._held.lstrip())
        rest = self._held.lstrip(_BETWEEN_CALLS)
        rest = rest.removeprefix(self._tools.format.closing_tag).lstrip(_BETWEEN_CALLS)
        return len(self._held) - len(rest)

    def _new_body(self, opening: str, streamed: Collection[str]) -> CallBody:
        assert self._tools is not None
        stop = self._reasoning.end if self._reasoning is not None and self.is_reasoning else ""
        return CallBody(self._tools.format, opening, streamed, self._tools.types_of, stop)

    def _begin_body(self, start: int, body: int) -> None:
        """Begins a body of calls at position `body` of the held text. The markup that opens it is at
        `start`."""
        assert self._tools is not None
        self._body = self._new_body(self._held[start:body], () if self.is_reasoning else self._tools.enforced)
        self._held = self._held[body:]

    def _read_body(self, body: CallBody, deltas: list[Delta], final: bool) -> bool:
        held, self._held = self._held, ""
        deltas += self._number(body.push(held, final))
        if body.rest is None:
            return False
        self._held, self._body = body.rest, None
        self._may_be_bare = bool(body.streams) or self._add_calls(body, deltas)
        self._trims = self._trims or (self.is_reasoning and self._may_be_bare)
        return True

    def _add_calls(self, body: CallBody, deltas: list[Delta]) -> bool:
        """Adds the calls of a collected body, or else its text. Returns whether the body has calls."""
        assert self._tools is not None
        calls = parse_calls(self._tools.format, body.opening, body.text, self._tools.types_of)
        if calls and all(map(self._tools.fits, calls)):
            deltas += self._number(CallPart(*call) for call in calls)
            return True
        if self.is_reasoning:
            self._read_again(body, deltas)
            return False
        if self._is_cut and not body.has_end and self._add_cut_call(body, deltas):
            return True
        deltas.append(ContentDelta(body.opening + body.text))
        return False

    def _read_again(self, body: CallBody, deltas: list[Delta]) -> None:
        """Makes a body in the reasoning reasoning again, up to the last tag in it."""
        last = max(body.text.rfind(tag) for tag in self._tags)
        kept = body.text[: max(last, 0)]
        deltas.append(ReasoningDelta(body.opening + kept))
        self._held = body.text[len(kept) :] + self._held
        self._reasons_with_calls = body.has_end

    def _add_cut_call(self, body: CallBody, deltas: list[Delta]) -> bool:
        """Adds the incomplete call at the end of a cut reply. Returns False if the body may not be a call."""
        assert self._tools is not None
        again = self._new_body(body.opening, self._tools.names)
        begins = again.begins_call(body.text)
        if begins:
            deltas += self._number(again.push(body.text, final=True))
        return begins or (begins is None and bool(body.tag))

    def _number(self, parts: Iterable[CallPart]) -> Iterator[ToolCallDelta]:
        assert self._tools is not None
        for name, arguments, id in parts:
            self.calls += name is not None
            new_id = None if name is None else id or _new_id(self._tools.format.id_length)
            yield ToolCallDelta(self.calls - 1, new_id, name, arguments)


def _join(deltas: Iterable[Delta]) -> list[Delta]:
    """Merges neighbours that continue the same text or call."""
    found: list[Delta] = []
    for delta in deltas:
        match found[-1:], delta:
            case _, ContentDelta("") | ReasoningDelta("") | ToolCallDelta(_, None, None, ""):
                pass
            case [ContentDelta(before)], ContentDelta(text):
                found[-1] = ContentDelta(before + text)
            case [ReasoningDelta(before)], ReasoningDelta(text):
                found[-1] = ReasoningDelta(before + text)
            case [ToolCallDelta(index, id, name, before)], ToolCallDelta(_, None, None, fragment):
                found[-1] = ToolCallDelta(index, id, name, before + fragment)
            case _:
                found.append(delta)
    return found


def _new_id(length: int) -> str:
    """A random id of a call, of `length` letters and digits; by default as OpenAI's. Mistral's templates
    accept only nine."""
    alphabet = string.ascii_letters + string.digits
    prefix = "" if length else "call_"
    return prefix + "".join(secrets.choice(alphabet) for _ in range(length or 24))
