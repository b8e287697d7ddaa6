"""A streamed reply of a chat, put together from its lines."""

from __future__ import annotations

import json
import time
from typing import Any


class StreamedReply:
    """The reply to a request that is sent now: what the lines of its stream add up to. `error` is that of an
    error event; `is_done` says that the stream ended with [DONE]."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self.ttft: list[float] = []
        self.text = ""
        self.calls: dict[int, Any] = {}
        self.finish_reason = None
        self.output_tokens = 0
        self.error: object = None
        self.is_done = False

    def take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.is_done = True
        if not line.startswith("data: {"):
            return
        event = json.loads(line[6:])
        if "error" in event:
            self.error = event["error"]
            return
        if event.get("usage"):
            self.output_tokens = event["usage"]["completion_tokens"]
        for choice in event["choices"]:
            self._take_delta(choice["delta"])
            self.finish_reason = choice["finish_reason"] or self.finish_reason

    def choice(self) -> Any:
        message = {"content": self.text, "tool_calls": [self.calls[index] for index in sorted(self.calls)]}
        return {"message": message, "finish_reason": self.finish_reason}

    def _take_delta(self, delta: Any) -> None:
        said = delta.get("content") or delta.get("tool_calls") or delta.get("reasoning")
        if said and not self.ttft:
            self.ttft.append(time.perf_counter() - self._started)
        self.text += delta.get("content") or ""
        for part in delta.get("tool_calls") or ():
            call = self.calls.setdefault(part["index"], {"function": {"arguments": ""}})
            call["function"]["arguments"] += part["function"].get("arguments") or ""
