"""Anthropic's response bodies, and the events of its streams."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ...core.cache_misses.explanation import Explanation
from ...core.fields import JsonObject
from ...core.reply import UnenforcedKeyword

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class OutputTokensDetails(Struct):
    thinking_tokens: int


class CacheCreation(Struct):
    """The cached tokens that a breakpoint keeps for five minutes or for an hour."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class Usage(Struct, kw_only=True):
    """The three counts of input tokens are disjoint: they add up to the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_creation: CacheCreation
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails | UnsetType = UNSET
    service_tier: Literal["standard"] | UnsetType = UNSET


class TextBlock(Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class Message(Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: Usage
    context_management: JsonObject | UnsetType = UNSET
    diagnostics: JsonObject | UnsetType = UNSET
    unenforced: list[UnenforcedKeyword] | UnsetType = UNSET
    cache_explanation: Explanation | UnsetType = UNSET


class MessageEnd(Struct):
    stop_reason: StopReason
    stop_sequence: str | None


class TokensCount(Struct):
    input_tokens: int


class ModelInfo(Struct, kw_only=True, tag_field="type", tag="model"):
    """A model. `created_at` is in RFC 3339. The numbers of tokens are null before the model is loaded."""

    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None
    max_tokens: int | None


class ModelPage(Struct, kw_only=True):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


class ErrorDetails(Struct):
    """An error. `error_code` is a stable word, `param` the path of the field at fault."""

    error_code: str | None
    param: str | None


class ErrorBody(Struct):
    type: str
    message: str
    details: ErrorDetails


class ErrorResponse(Struct, kw_only=True, tag_field="type", tag="error"):
    error: ErrorBody
    request_id: str | None


class MessageStart(Struct, tag_field="type", tag="message_start"):
    message: Message


class Ping(Struct, tag_field="type", tag="ping"):
    pass


class BlockStart(Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class TextDelta(Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(Struct, tag_field="type", tag="signature_delta"):
    signature: str


class InputDelta(Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: Delta


class BlockStop(Struct, tag_field="type", tag="content_block_stop"):
    index: int


class MessageDelta(Struct, tag_field="type", tag="message_delta", kw_only=True):
    delta: MessageEnd
    usage: Usage
    context_management: JsonObject | UnsetType
    unenforced: list[UnenforcedKeyword] | UnsetType
    cache_explanation: Explanation | UnsetType


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    pass


Event = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
EVENTS = get_args(Event)
