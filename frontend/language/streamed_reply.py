"""Joins the parts of a streamed reply."""

from __future__ import annotations

from ..engine.completion import CompletionPart, ToolCall
from .api_client import Piece
from .api_client import Usage as ServerUsage
from .backend import OnText, Reply, Usage
from .errors import BackendError


class StreamedReply:
    """Takes the parts of one choice, from a server or from an `Engine`."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._finish_reason = ""
        self._usage: Usage = ServerUsage()

    def take(self, part: Piece | CompletionPart) -> None:
        if part.text:
            self._text.append(part.text)
            self._on_text(part.text)
        self._reasoning.append(part.reasoning)
        for call in part.tool_calls:
            known = self._calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
            known["id"] += call.id or ""
            known["name"] += call.name or ""
            known["arguments"] += call.arguments
        self._finish_reason = part.finish_reason or self._finish_reason
        self._usage = part.usage or self._usage

    def whole(self) -> Reply:
        """The whole reply. Raises `BackendError` if the stream has ended too early."""
        if not self._finish_reason:
            raise BackendError("the stream ended before the reply did: the connection was cut.")
        return Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(ToolCall(**self._calls[index]) for index in sorted(self._calls)),
            finish_reason=self._finish_reason,
            usage=self._usage,
        )
