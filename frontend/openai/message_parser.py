"""A chat reply's text told apart: reasoning, content and tool calls."""

from __future__ import annotations

from typing import NamedTuple

from ..text.reasoning import ReasoningParser
from .responses import ToolCallDelta


class MessageParts(NamedTuple):
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class MessageParser:
    """One choice's. Without parsers all text is content."""

    def __init__(self, reasoning: ReasoningParser | None) -> None:
        self._reasoning = reasoning

    def push(self, text: str, final: bool) -> MessageParts:
        """`final`: no more text follows."""
        if self._reasoning is None:
            return MessageParts(text)
        delta = self._reasoning.push(text, final)
        return MessageParts(delta.content, delta.reasoning)
