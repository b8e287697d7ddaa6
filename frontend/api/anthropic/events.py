"""The events of Anthropic's streams."""

from __future__ import annotations

from msgspec import Struct, UnsetType

from ...core.cache_misses.explanation import Explanation
from ...core.fields import JsonObject
from ...core.reply import UnenforcedKeyword
from .responses import Block, Message, MessageEnd, Usage


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


class BlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


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


EVENTS = (MessageStart, Ping, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop)
