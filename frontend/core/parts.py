"""The pieces of a choice's reply, and its parts: reasoning, texts and calls of tools, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .logprobs import TokenLogprob
from .tools.reply_parser import ContentDelta, Delta, ToolCallDelta

Kind = Literal["reasoning", "text", "call"]


class Piece(NamedTuple):
    """The addition of one output to choice number `choice`. The last piece has the `finish` reason.

    `content` is all text outside of reasoning and calls. `deltas` has all of it in its order, and is empty if
    there are no calls and the reasoning comes before the content.
    """

    choice: int
    content: str
    logprobs: Sequence[TokenLogprob]
    finish: str | None
    reasoning: str = ""
    deltas: Sequence[Delta] = ()

    @property
    def is_text_alone(self) -> bool:
        _, content, logprobs, finish, reasoning, deltas = self
        return bool(content) and not (logprobs or finish or reasoning or deltas)

    @property
    def tool_calls(self) -> list[ToolCallDelta]:
        return [delta for delta in self.deltas if isinstance(delta, ToolCallDelta)]


@dataclass(eq=False, slots=True)
class Part:
    """Reasoning, a text, or a call. A call has an `id`, the `name` of its tool, and its arguments as text."""

    kind: Kind
    id: str = ""
    name: str = ""
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Begun(NamedTuple):
    """A part begins. Its text is still empty."""

    part: Part


class More(NamedTuple):
    """More text of the open part."""

    part: Part
    text: str


class Ended(NamedTuple):
    """The open part ends."""

    part: Part


Change = Begun | More | Ended


class Parts:
    """Joins pieces into parts. A piece of another kind or call ends the open part and begins a new one."""

    def __init__(self) -> None:
        self.all: list[Part] = []
        self.open: Part | None = None

    def push(self, piece: Piece) -> Iterator[Change]:
        """Adds a piece, and yields each change of the parts just after making it."""
        if piece.reasoning and not piece.deltas:
            yield from self._add("reasoning", piece.reasoning)
        if piece.content and not piece.deltas:
            yield from self._add("text", piece.content)
        for delta in piece.deltas:
            if not isinstance(delta, ToolCallDelta):
                yield from self._add("text" if isinstance(delta, ContentDelta) else "reasoning", delta.text)
                continue
            if delta.id is not None:
                yield from self._begin(Part("call", delta.id, delta.name or ""))
            if delta.arguments_fragment:
                yield self._more("call", delta.arguments_fragment)

    def end(self) -> Iterator[Change]:
        """Ends the open part at the reply's end."""
        ended, self.open = self.open, None
        if ended is not None:
            yield Ended(ended)

    def add(self, piece: Piece) -> None:
        for _ in self.push(piece):
            pass

    def add_text(self, text: str) -> bool:
        """Appends the text to the open part if that part is a text. Returns whether it is."""
        if self.open is None or self.open.kind != "text":
            return False
        self.open.texts.append(text)
        return True

    def text(self, kind: Kind) -> str:
        """All parts of this kind, joined."""
        return "".join([each.text for each in self.all if each.kind == kind])

    def calls(self) -> list[Part]:
        return [each for each in self.all if each.kind == "call"]

    def _add(self, kind: Kind, text: str) -> Iterator[Change]:
        if self.open is None or self.open.kind != kind:
            yield from self._begin(Part(kind))
        yield self._more(kind, text)

    def _begin(self, part: Part) -> Iterator[Change]:
        yield from self.end()
        self.open = part
        self.all.append(part)
        yield Begun(part)

    def _more(self, kind: Kind, text: str) -> Change:
        assert self.open is not None and self.open.kind == kind, (
            "a call begins with its id, and no text is in it"
        )
        self.open.texts.append(text)
        return More(self.open, text)
