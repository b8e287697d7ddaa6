"""Turns the pieces of a reply into content blocks: thinking, texts and calls of tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from msgspec import Raw

from ...core.reply import Piece
from .ids import wire_id
from .responses import Block, TextBlock, ThinkingBlock, ToolUseBlock
from .thinking import Shown, signature

Kind = Literal["thinking", "text", "tool_use"]
NO_INPUT = Raw(b"{}")


class Begun(NamedTuple):
    """A block begins. Its text, thinking or input is still empty."""

    block: Block


class More(NamedTuple):
    """More text, thinking or JSON of the input of the open block."""

    kind: Kind
    text: str


class Signed(NamedTuple):
    """The signature that ends the open block of thinking."""

    signature: str


class Ended(NamedTuple):
    """The open block ends."""


Event = Begun | More | Signed | Ended


class Blocks:
    """At most one block is open: a piece of another kind, or of another call, ends it."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._open: Kind | None = None
        self._thinking: list[str] = []

    def continues_text(self, piece: Piece) -> bool:
        """Whether the piece only adds text to the open text block."""
        return (
            self._open == "text"
            and bool(piece.content)
            and not piece.tool_calls
            and not (piece.reasoning and self._shown != "hidden")
        )

    def push(self, piece: Piece) -> Iterator[Event]:
        if piece.reasoning and self._shown != "hidden":
            yield from self._think(piece.reasoning)
        if piece.content:
            if self._open != "text":
                yield from self._begin("text", TextBlock(""))
            yield More("text", piece.content)
        for call in piece.tool_calls:
            if call.id is not None:
                yield from self._begin("tool_use", ToolUseBlock(wire_id(call.id), call.name or "", NO_INPUT))
            if call.arguments_fragment:
                yield More("tool_use", call.arguments_fragment)

    def end(self) -> Iterator[Event]:
        """The reply has ended."""
        if self._open == "thinking":
            yield Signed(signature("".join(self._thinking), is_omitted=self._shown == "omitted"))
        if self._open is not None:
            yield Ended()
        self._open = None
        self._thinking.clear()

    def _begin(self, kind: Kind, block: Block) -> Iterator[Event]:
        yield from self.end()
        self._open = kind
        yield Begun(block)

    def _think(self, text: str) -> Iterator[Event]:
        if self._open != "thinking":
            yield from self._begin("thinking", ThinkingBlock("", ""))
        self._thinking.append(text)
        if self._shown != "omitted":
            yield More("thinking", text)
