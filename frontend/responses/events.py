"""The events of a response's stream. Each has the next number of the sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .output import Added, Change, Done, More
from .responses import (
    CustomToolCall,
    FunctionCall,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Response,
)

_encode = msgspec.json.encode
_DELTA = (
    b'event: response.%b.delta\ndata: {"type":"response.%b.delta","sequence_number":%d,"item_id":"%b",'
    b'"output_index":%d,%b"delta":%b%b}\n\n'
)
_IN_CONTENT = b'"content_index":0,'


class Events:
    """Writes events, each in full before the response changes again."""

    def __init__(self) -> None:
        self._next = 0
        self._index = -1
        self._item_id = b""

    def of_response(self, name: str, response: Response) -> bytes:
        return self._event(f"response.{name}", {"response": response})

    def of_change(self, change: Change) -> bytes:
        match change:
            case More(kind, text, logprobs):
                name = kind.encode()
                in_content = _IN_CONTENT if kind.endswith("_text") else b""
                more = b',"logprobs":' + _encode(logprobs) if kind == "output_text" else b""
                where = self._item_id, self._index, in_content
                return _DELTA % (name, name, self._number(), *where, _encode(text), more)
            case Added(item):
                self._index += 1
                self._item_id = item.id.encode()
                added = self._event("response.output_item.added", {"output_index": self._index, "item": item})
                if isinstance(item, OutputMessage | ReasoningItem):
                    part = OutputText() if isinstance(item, OutputMessage) else ReasoningText()
                    added += self._in_item("response.content_part.added", {"content_index": 0, "part": part})
                return added
            case Done(item):
                ended = {"output_index": self._index, "item": item}
                return self._last(item) + self._event("response.output_item.done", ended)

    def _last(self, item: Any) -> bytes:
        """The events that have the whole text of the item."""
        match item:
            case OutputMessage(content=[part]):
                text = {"content_index": 0, "text": part.text, "logprobs": part.logprobs}
                return self._in_item("response.output_text.done", text) + self._part_done(part)
            case ReasoningItem(content=[part]):
                text = {"content_index": 0, "text": part.text}
                return self._in_item("response.reasoning_text.done", text) + self._part_done(part)
            case FunctionCall():
                call = {"name": item.name, "arguments": item.arguments}
                return self._in_item("response.function_call_arguments.done", call)
            case CustomToolCall():
                return self._in_item("response.custom_tool_call_input.done", {"input": item.input})
        return b""

    def _part_done(self, part: OutputText | ReasoningText) -> bytes:
        return self._in_item("response.content_part.done", {"content_index": 0, "part": part})

    def _in_item(self, name: str, fields: Mapping[str, Any]) -> bytes:
        place = {"item_id": self._item_id.decode(), "output_index": self._index}
        return self._event(name, {**place, **fields})

    def _event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        data = _encode({"type": name, "sequence_number": self._number(), **fields})
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"

    def _number(self) -> int:
        self._next += 1
        return self._next - 1
