"""Separates a choice's text into reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...runtime.messages import Tokens
from .text.reasoning import ReasoningParser
from .tools.tool_calls import ContentDelta, ToolCallDelta, ToolCallParser


class ChatReader:
    """Reads one choice. `remember` takes the choice's whole text and tokens once it has ended, so that the
    conversation's next turn begins with them.

    Without `reasoning` and `tools` the choice `is_plain`: all text is content.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None,
        tools: ToolCallParser | None,
        remember: Callable[[str, Tokens], None],
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self.remember = remember
        self.has_tools = tools is not None
        self.is_plain = reasoning is None and tools is None
        self.has_tool_calls = False
        self.called_tools: list[str] = []  # names

    def push(self, text: str, final: bool, cut: bool) -> tuple[str, str, Sequence[ToolCallDelta]]:
        """Returns content, reasoning and calls.

        `final`: no more text follows; `cut`: because a limit or a stop string ended it.
        """
        reasoning = ""
        if self._reasoning is not None:
            reasoning, text = self._reasoning.push(text, final)
        if self._tools is None:
            return text, reasoning, ()
        deltas = self._tools.push(text, final, cut)
        calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
        self.called_tools += [delta.name for delta in calls if delta.name]
        self.has_tool_calls = self.has_tool_calls or bool(calls)
        content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
        return content, reasoning, calls

    def may_check(self, several: bool) -> bool:
        """Whether the next push may check a complete call against its schema, which takes up to 0.2 s.

        `several`: the push has the text of more than one token.
        """
        return self._tools is not None and self._tools.may_check(several)

    @property
    def is_reasoning(self) -> bool:
        return self._reasoning is not None and self._reasoning.is_inside

    @property
    def has_reasoned(self) -> bool:
        """Whether the reasoning has ended."""
        return self._reasoning is not None and self._reasoning.has_ended
