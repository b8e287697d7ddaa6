"""The types of the events in a response's stream."""

from __future__ import annotations

from msgspec import Struct

from ...api.openai.responses import ContentLogprob
from .responses import OutputItem, OutputText, ReasoningText, Response


class Event(Struct, tag_field="type", kw_only=True):
    """Base of a stream's events. `sequence_number` counts them from 0."""

    sequence_number: int


class ResponseEvent(Event, kw_only=True):
    response: Response


class Created(ResponseEvent, tag="response.created"):
    pass


class InProgress(ResponseEvent, tag="response.in_progress"):
    pass


class Completed(ResponseEvent, tag="response.completed"):
    pass


class Incomplete(ResponseEvent, tag="response.incomplete"):
    pass


class Failed(ResponseEvent, tag="response.failed"):
    pass


class ItemAdded(Event, tag="response.output_item.added", kw_only=True):
    output_index: int
    item: OutputItem


class ItemDone(Event, tag="response.output_item.done", kw_only=True):
    output_index: int
    item: OutputItem


class ItemEvent(Event, kw_only=True):
    """Base of events about an item. `output_index` is the item's place in the response's output."""

    item_id: str
    output_index: int


class PartAdded(ItemEvent, tag="response.content_part.added", kw_only=True):
    content_index: int = 0
    part: OutputText | ReasoningText


class PartDone(ItemEvent, tag="response.content_part.done", kw_only=True):
    content_index: int = 0
    part: OutputText | ReasoningText


class TextDelta(ItemEvent, tag="response.output_text.delta", kw_only=True):
    content_index: int
    delta: str
    logprobs: list[ContentLogprob]


class TextDone(ItemEvent, tag="response.output_text.done", kw_only=True):
    content_index: int = 0
    text: str
    logprobs: list[ContentLogprob]


class ReasoningDelta(ItemEvent, tag="response.reasoning_text.delta", kw_only=True):
    content_index: int
    delta: str


class ReasoningDone(ItemEvent, tag="response.reasoning_text.done", kw_only=True):
    content_index: int = 0
    text: str


class ArgumentsDelta(ItemEvent, tag="response.function_call_arguments.delta", kw_only=True):
    delta: str


class ArgumentsDone(ItemEvent, tag="response.function_call_arguments.done", kw_only=True):
    name: str
    arguments: str


class InputDelta(ItemEvent, tag="response.custom_tool_call_input.delta", kw_only=True):
    delta: str


class InputDone(ItemEvent, tag="response.custom_tool_call_input.done", kw_only=True):
    input: str


OF_RESPONSE: dict[str, type[ResponseEvent]] = {
    "created": Created,
    "in_progress": InProgress,
    "completed": Completed,
    "incomplete": Incomplete,
    "failed": Failed,
}
EVENTS: tuple[type[Event], ...] = (
    *OF_RESPONSE.values(),
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    TextDelta,
    TextDone,
    ReasoningDelta,
    ReasoningDone,
    ArgumentsDelta,
    ArgumentsDone,
    InputDelta,
    InputDone,
)
