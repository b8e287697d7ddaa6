"""Reads the tool calls that follow a tag or a bracket, while their text arrives."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from .call_arguments import ArgumentReader, make_reader
from .call_format import Form, ToolFormat
from .call_syntax import BodyEnd, TypesOf

MAX_NUMBER = 64  # characters of a call's number and the mark after it


class CallPart(NamedTuple):
    """A function's name, its call's id or an empty one, and JSON text of its arguments. The name is None if
    the text continues a call."""

    name: str | None
    arguments: str
    id: str = ""


class _Head(NamedTuple):
    """The text before a call's arguments. `length` is 0 if there is none."""

    length: int
    form: Form
    call: CallPart


class CallBody:
    """The calls after `opening`, which is a tag with the white space before it, or empty.

    If the text begins exactly as the format writes a call of a function in `streamed`, `push` returns the
    calls in parts, as they arrive. Any other body is collected in `text`. Outside of strings and parameters
    `stop` ends it.
    """

    def __init__(
        self, format: ToolFormat, opening: str, streamed: Collection[str], types_of: TypesOf, stop: str = ""
    ) -> None:
        self.opening = opening
        self.tag = next((tag for tag in format.tags if opening.endswith(tag)), "")
        self.streams: bool | None = None  # None: more text is needed to tell
        self.has_end = False  # whether the body's own end has come, not only the reply's end
        self.rest: str | None = None  # the text after the body, None until the body ends
        self._format = format
        self._streamed = streamed
        self._types_of = types_of
        self._heads: dict[str, tuple[Form, str]] = {}  # texts up to the name, or up to the call's number
        for form in format.forms:
            if (form.prefix + form.head[0]).startswith(self.tag):
                self._expect_heads(form, form.prefix)
        self._form = format.form
        self._arguments: ArgumentReader | None = None
        self._end = BodyEnd(format, stop)
        self._held = ""
        self._collected: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._collected)

    def begins_call(self, text: str) -> bool | None:
        """Whether the text begins with a call of a streamed function. None if more text is needed to tell."""
        head = self._find_head(text)
        return None if head is None else head.length > 0

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
        self._collected.append(held)
        self.has_end = length is not None
        if length is not None:
            whole = self.text
            end = len(whole) - len(held) + length
            self._collected, self.rest = [whole[:end]], whole[end:]
        elif final:
            self.rest = ""
        return []

    def _stream(self, final: bool) -> Iterator[CallPart]:
        while True:
            if self._arguments is not None:
                fragment, rest = self._arguments.feed(self._held)
                yield CallPart(None, fragment)
                self._held = rest or ""
                if rest is None:
                    return
                self._arguments = None
                self._expect_next()
            head = self._find_head(self._held)
            if head is None or not head.length:
                break
            yield head.call
            self._held, self._form = self._held[head.length :], head.form
            self._arguments = make_reader(self._format.parameters, self._types_of(head.call.name or ""))
        end = self._form.tail + self._form.suffix
        if self._held.startswith(end):
            self.rest = self._held[len(end) :]
        elif head is not None and not end.startswith(self._held):
            self.rest = self._held
        elif final:
            self.rest = ""

    def _expect_heads(self, form: Form, lead: str) -> None:
        """Expects calls to begin with `lead`, which stands before their heads."""
        number = self._format.call_id
        for name in self._streamed:
            head = lead + (form.head[0] + name + number.mark if number else form.begin(name))
            self._heads[head[len(self.tag) :] if lead == form.prefix else head] = (form, name)

    def _expect_next(self) -> None:
        self._heads = {}
        if self._form.between is not None:
            self._expect_heads(self._form, self._form.tail + self._form.between)

    def _find_head(self, text: str) -> _Head | None:
        """The head with which the text begins, if arguments follow. None if more text is needed."""
        may_come = False
        for head, (form, name) in self._heads.items():
            if not text.startswith(head):
                may_come = may_come or head.startswith(text)
                continue
            end, id = self._read_id(text[len(head) :], form.head[1], name)
            length = len(head) + end
            begins = None if end < 0 else self._begins_arguments(form, text[length:])
            if begins:
                return _Head(length, form, CallPart(name, "", id))
            may_come = may_come or begins is None
        return None if may_come else _Head(0, self._form, CallPart(None, ""))

    def _begins_arguments(self, form: Form, text: str) -> bool | None:
        """Whether the text after a head begins arguments, or ends a call without any. None if more text is
        needed."""
        syntax = self._format.parameters
        if syntax is not None and not syntax.is_raw:
            return bool(text) or None
        starts = ["{"]
        if syntax is not None:
            starts = [syntax.name[0], form.tail + form.suffix, form.tail + (form.between or form.suffix)]
        if any(map(text.startswith, starts)):
            return True
        return None if any(start.startswith(text) for start in starts) else False

    def _read_id(self, text: str, after: str, name: str) -> tuple[int, str]:
        """The length of the number and the text after it, and the call's id. The length is negative if more
        text is needed."""
        syntax = self._format.call_id
        if syntax is None:
            return 0, ""
        number, mark, _ = text.partition(after)
        if not mark:
            return (-1 if len(text) < MAX_NUMBER else 0), ""
        return len(number) + len(mark), syntax.id.format(name=name, number=number)
