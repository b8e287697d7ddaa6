"""The events of a response's stream. Each has the next number of the sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from .event_types import (
    OF_RESPONSE,
    ArgumentsDone,
    Event,
    InputDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDone,
    TextDone,
)
from .output import Added, Change, Done, More
from .responses import (
    CustomToolCall,
    FunctionCall,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Response,
)

_encode = msgspec.json.encode
# Most events are deltas, which templates write faster than msgspec encodes structs.
_DELTA_START = b'event: response.%b.delta\ndata: {"type":"response.%b.delta","sequence_number":'
_DELTA_MIDDLE = b',"item_id":"%b","output_index":%d,%b"delta":'
_DELTA_END = b"}\n\n"
_IN_CONTENT = b'"content_index":0,'
_TEXT_START = _DELTA_START % (b"output_text", b"output_text")
_TEXT_END = b',"logprobs":[]' + _DELTA_END
_ENDS = {"cancelled": "incomplete"}


class Events:
    """Writes events, each in full before the response changes again. `first` is the number of the first
    event.

    The two events of the response as it has `begun` come with the first output, or before the end.
    """

    def __init__(self, begun: Response | None = None, first: int = 0) -> None:
        self._begun = begun
        self._next = first
        self._index = -1
        self._item_id = ""
        self._text_middle = b""  # the part of a text delta between its number and its text

    def of_response(self, name: str, response: Response) -> bytes:
        return _written(OF_RESPONSE[name](response=response, sequence_number=self._number()))

    def start(self) -> bytes:
        """The first events; nothing if they are written already."""
        begun, self._begun = self._begun, None
        if begun is None:
            return b""
        return self.of_response("created", begun) + self.of_response("in_progress", begun)

    def of_end(self, response: Response) -> bytes:
        """The last event. OpenAI has none for a cancelled response, which is incomplete."""
        return self.start() + self.of_response(_ENDS.get(response.status, response.status), response)

    def of_end_instead(self, response: Response) -> bytes:
        """The last event for a response that could not be stored after `of_end`, with the same number."""
        self._next -= 1
        return self.of_end(response)

    def of_text(self, text: str) -> bytes:
        """The event of more text in the open message, without log-probabilities. `of_change` would return
        the same bytes, but takes longer."""
        self._next += 1
        return b"%b%d%b%b%b" % (
            _TEXT_START,
            self._next - 1,
            self._text_middle,
            _encode(text),
            _TEXT_END,
        )

    def of_changes(self, changes: Iterable[Change]) -> bytes:
        """The events of the changes, each written before the next change is made."""
        return b"".join(self.start() + self.of_change(change) for change in changes)

    def of_change(self, change: Change) -> bytes:
        match change:
            case More(kind, text, logprobs):
                name = kind.encode()
                in_content = _IN_CONTENT if kind.endswith("_text") else b""
                more = b',"logprobs":' + _encode(logprobs) if kind == "output_text" else b""
                start = _DELTA_START % (name, name) + b"%d" % self._number()
                return start + self._delta_middle(in_content) + _encode(text) + more + _DELTA_END
            case Added(item):
                self._index += 1
                self._item_id = item.id
                self._text_middle = self._delta_middle(_IN_CONTENT)
                return b"".join(map(_written, self._first(item)))
            case Done(item):
                return b"".join(map(_written, self._last(item)))

    def _first(self, item: OutputItem) -> Iterator[Event]:
        yield ItemAdded(item=item, output_index=self._index, sequence_number=self._number())
        match item:
            case OutputMessage():
                yield PartAdded(part=OutputText(), **self._place())
            case ReasoningItem():
                yield PartAdded(part=ReasoningText(), **self._place())

    def _last(self, item: OutputItem) -> Iterator[Event]:
        """The events that have the whole text of the item, and the item."""
        match item:
            case OutputMessage(content=[part]):
                yield TextDone(text=part.text, logprobs=part.logprobs, **self._place())
                yield PartDone(part=part, **self._place())
            case ReasoningItem(content=[thought]):
                yield ReasoningDone(text=thought.text, **self._place())
                yield PartDone(part=thought, **self._place())
            case FunctionCall():
                yield ArgumentsDone(name=item.name, arguments=item.arguments, **self._place())
            case CustomToolCall():
                yield InputDone(input=item.input, **self._place())
        yield ItemDone(item=item, output_index=self._index, sequence_number=self._number())

    def _delta_middle(self, in_content: bytes) -> bytes:
        return _DELTA_MIDDLE % (self._item_id.encode(), self._index, in_content)

    def _place(self) -> dict[str, Any]:
        """The members of an event about the open item."""
        return {
            "item_id": self._item_id,
            "output_index": self._index,
            "sequence_number": self._number(),
        }

    def _number(self) -> int:
        self._next += 1
        return self._next - 1


def _written(event: Event) -> bytes:
    name = str(event.__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + _encode(event) + b"\n\n"
