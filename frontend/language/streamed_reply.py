"""Joins the events of a streamed reply."""

from __future__ import annotations

from typing import Any

from ..engine.completion import ToolCall
from .backend import OnText, Reply
from .errors import BackendError


class StreamedReply:
    """Takes the events of one choice, in the forms of completions and of chats."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._finish_reason = ""
        self._usage: dict[str, Any] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Raises `BackendError` for an event that says that the reply failed."""
        if error := event.get("error"):
            raise BackendError(f"the reply was ended by an error: {error.get('message', error)}")
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices", ()):
            delta = choice.get("delta", choice)
            if text := delta.get("content", choice.get("text")):
                self._text.append(text)
                self._on_text(text)
            self._reasoning.append(delta.get("reasoning") or delta.get("reasoning_content") or "")
            for call in delta.get("tool_calls") or ():
                self._take_call(call)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _take_call(self, delta: dict[str, Any]) -> None:
        call = self._calls.setdefault(delta["index"], {"id": "", "name": "", "arguments": ""})
        call["id"] += delta.get("id") or ""
        for field in ("name", "arguments"):
            call[field] += (delta.get("function") or {}).get(field) or ""

    def whole(self) -> Reply:
        """Raises `BackendError` if the stream has ended too early."""
        if not self._finish_reason:
            raise BackendError("the stream ended before the reply did: the connection was cut.")
        return Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(ToolCall(**self._calls[index]) for index in sorted(self._calls)),
            finish_reason=self._finish_reason,
            prompt_tokens=self._usage.get("prompt_tokens", 0),
            cached_tokens=(self._usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            completion_tokens=self._usage.get("completion_tokens", 0),
        )
