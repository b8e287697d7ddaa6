"""Reads replies that are either tool calls or an answer of a given form. Nothing in an answer is a call."""

from __future__ import annotations

from collections.abc import Collection

from .live_calls import LiveCalls
from .tool_calls import ContentDelta, Delta, ToolCallParser
from .tool_formats import TAGS, ToolFormat


class AnswerOrCalls:
    """The beginning of a reply decides which of the two it is. `names` are the names of all tools."""

    def __init__(self, calls: ToolCallParser, format: ToolFormat, names: Collection[str]) -> None:
        self._calls = calls
        self._format = format
        self._names = names
        self._held = ""
        self._is_call: bool | None = None

    def may_check(self, several: bool) -> bool:
        """As `ToolCallParser.may_check`."""
        return self._calls.may_check(several or bool(self._held))

    def push(self, text: str, final: bool, cut: bool = False) -> list[Delta]:
        """As `ToolCallParser.push`."""
        self._held += text
        if self._is_call is None:
            start = self._held.lstrip()
            begins = self._begins_call(start, final)
            if begins is None:
                return []
            self._is_call = begins or (cut and self._begins_tag(start))
        held, self._held = self._held, ""
        if self._is_call:
            return self._calls.push(held, final, cut)
        return [ContentDelta(held)] if held else []

    def _begins_call(self, text: str, final: bool) -> bool | None:
        """Whether a call begins; an answer wins if both are possible. None if more text is needed."""
        tags = TAGS[self._format.name]
        if text.startswith(tags):
            return True
        is_bare = not self._format.prefix.startswith(tags)
        bare = LiveCalls(self._format, self._names, "").recognizes(text) if is_bare else False
        if bare is None or not text or self._begins_tag(text):
            return False if final else None
        return bare

    def _begins_tag(self, text: str) -> bool:
        return bool(text) and any(tag.startswith(text) for tag in TAGS[self._format.name])
