"""Collects the parts of tool calls, because Ollama's streams have only whole calls."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.cut_input import whole_input
from ...core.tools.tool_calls import ToolCallDelta
from .responses import CalledFunction, ToolCall


class Calls:
    """At most one call is open: the next call, or text, ends it."""

    def __init__(self) -> None:
        self._open: ToolCallDelta | None = None
        self._arguments: list[str] = []
        self._ended = 0

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def push(self, deltas: Sequence[ToolCallDelta], *, has_text: bool) -> list[ToolCall]:
        """The calls that have ended. `has_text`: the reply has text before these parts."""
        ended = self.end() if has_text else []
        for delta in deltas:
            if delta.id is not None:
                ended += self.end()
                self._open = delta
            self._arguments.append(delta.arguments_fragment)
        return ended

    def end(self) -> list[ToolCall]:
        """The open call, if there is one. Arguments that a limit has cut keep their complete members."""
        if self._open is None:
            return []
        arguments = whole_input("".join(self._arguments))
        call = ToolCall(self._open.id or "", CalledFunction(self._ended, self._open.name or "", arguments))
        self._open = None
        self._arguments.clear()
        self._ended += 1
        return [call]
