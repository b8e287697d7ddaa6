"""A chat reply's text told apart: reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..text.reasoning import ReasoningParser
from ..text.tool_calls import ContentDelta, ToolCallDelta, ToolCallParser


class MessageParts(NamedTuple):
    content: str
    reasoning: str = ""
    tool_calls: Sequence[ToolCallDelta] = ()


class MessageParser:
    """One choice's. Without parsers all text is content."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolCallParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    def push(self, text: str, final: bool) -> MessageParts:
        """`final`: no more text follows."""
        thoughts = ""
        if self._reasoning is not None:
            thoughts, text = self._reasoning.push(text, final)
        if self._tools is None:
            return MessageParts(text, thoughts)
        deltas = self._tools.push(text, final)
        content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
        return MessageParts(
            content, thoughts, [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
        )
