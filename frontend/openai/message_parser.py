"""A chat reply's text told apart: reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..text.reasoning import ReasoningParser
from ..text.tool_calls import ContentDelta, Delta, ToolCallDelta


class MessageParts(NamedTuple):
    content: str
    reasoning: str = ""
    tool_calls: Sequence[ToolCallDelta] = ()


class ToolReader(Protocol):
    """Tells calls from content."""

    def push(self, text: str, final: bool, cut: bool) -> list[Delta]: ...


class MessageParser:
    """One choice's. Without parsers all text is content."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolReader | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def is_reasoning(self) -> bool:
        return self._reasoning is not None and self._reasoning.is_inside

    @property
    def has_reasoned(self) -> bool:
        """Whether the reasoning has come to its end."""
        return self._reasoning is not None and self._reasoning.has_ended

    def push(self, text: str, final: bool, cut: bool = False) -> MessageParts:
        """`final`: no more text follows; `cut`: because a limit or a stop string ended it."""
        thoughts = ""
        if self._reasoning is not None:
            thoughts, text = self._reasoning.push(text, final)
        if self._tools is None:
            return MessageParts(text, thoughts)
        deltas = self._tools.push(text, final, cut)
        content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
        return MessageParts(
            content, thoughts, [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
        )
