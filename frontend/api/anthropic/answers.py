"""Replies on the wire: a stream of events, or one message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ...core.cut_input import InputFragments, whole_input
from ...core.fields import JsonObject
from ...core.leases import Position
from ...core.parts import Begun, Change, Ended, More, Part, Parts, Piece
from ...core.reply import Reply
from .breakpoints import TTL_S
from .events import MessageDelta
from .ids import wire_id
from .responses import (
    Block,
    CacheCreation,
    Message,
    MessageEnd,
    OutputTokensDetails,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    Usage,
)
from .thinking import Shown, signature

_encode = msgspec.json.encode
_NO_INPUT = Raw(b"{}")
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_BLOCK_START = (
    b'event: content_block_start\ndata: {"type":"content_block_start","index":%d,"content_block":%b}\n\n'
)
_BLOCK_STOP = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":%b'
_DELTA_END = b"}}\n\n"
_DELTA_HEADS = {
    "text": b'{"type":"text_delta","text":',
    "reasoning": b'{"type":"thinking_delta","thinking":',
    "signature": b'{"type":"signature_delta","signature":',
    "call": b'{"type":"input_json_delta","partial_json":',
}


@dataclass(frozen=True, kw_only=True)
class MessageContext:
    """The facts about a request that its answer needs, streamed or whole.

    `page_tokens` is the size of a page of the prefix cache.
    """

    id: str
    model: str
    max_tokens: int
    page_tokens: int
    shown: Shown
    counts_thinking: bool
    context_management: JsonObject | UnsetType
    diagnostics: JsonObject | UnsetType
    breakpoints: Sequence[Position] = ()

    def usage(self, reply: Reply) -> Usage:
        """Tokens count as plain input if they were neither found in the cache nor left there."""
        counts = reply.usage()
        created = counts.written_tokens
        thinking = reply.choices[0].reasoning_tokens
        return Usage(
            input_tokens=counts.prompt_tokens - counts.cached_tokens - created,
            cache_creation_input_tokens=created,
            cache_creation=self._creation(counts.cached_tokens, created),
            cache_read_input_tokens=counts.cached_tokens,
            output_tokens=counts.completion_tokens,
            output_tokens_details=OutputTokensDetails(thinking) if self.counts_thinking else UNSET,
            service_tier="standard",
        )

    def _creation(self, cached: int, created: int) -> CacheCreation:
        """Counts how many of the created tokens are kept for five minutes and for an hour. A breakpoint keeps
        the full pages before it. Tokens before a breakpoint of an hour count as kept for an hour, even if a
        breakpoint of five minutes follows."""
        if not self.breakpoints:
            return CacheCreation(0, 0)

        def created_before(places: list[int]) -> int:
            full = max(places, default=0) // self.page_tokens * self.page_tokens
            return min(max(full - cached, 0), created)

        hour = created_before([each.tokens for each in self.breakpoints if each.ttl_s == TTL_S["1h"]])
        either = created_before([each.tokens for each in self.breakpoints])
        return CacheCreation(either - hour, hour)

    def end(self, reply: Reply) -> MessageEnd:
        choice = reply.choices[0]
        if isinstance(choice.stop_reason, str):
            return MessageEnd("stop_sequence", choice.stop_reason)
        reason: StopReason = "end_turn"
        if choice.finish == "length":
            is_cut = choice.completion_tokens < self.max_tokens
            reason = "model_context_window_exceeded" if is_cut else "max_tokens"
        elif choice.has_tool_calls:
            reason = "tool_use"
        return MessageEnd(reason, None)

    def message(self, reply: Reply, content: list[Block], end: MessageEnd | None) -> Message:
        """The whole message, or without `end` the one that begins a stream."""
        return Message(
            id=self.id,
            model=self.model,
            content=content,
            stop_reason=None if end is None else end.stop_reason,
            stop_sequence=None if end is None else end.stop_sequence,
            usage=self.usage(reply),
            context_management=UNSET if end is None else self.context_management,
            diagnostics=self.diagnostics,
            unenforced=UNSET if end is None else reply.unenforced() or UNSET,
            cache_explanation=UNSET if end is None else reply.explanation or UNSET,
        )

    def body(self, reply: Reply) -> bytes:
        """The whole answer."""
        blocks = [self._block(part) for part in reply.choices[0].parts.all if self.shows(part)]
        return _encode(self.message(reply, blocks, self.end(reply)))

    def shows(self, part: Part) -> bool:
        return part.kind != "reasoning" or self.shown != "hidden"

    def signature(self, part: Part) -> str:
        """The signature that ends a block of thinking."""
        return signature(part.text, is_omitted=self.shown == "omitted")

    def _block(self, part: Part) -> Block:
        match part.kind:
            case "text":
                return TextBlock(part.text)
            case "reasoning":
                return ThinkingBlock(part.text if self.shown == "summarized" else "", self.signature(part))
            case "call":
                return ToolUseBlock(wire_id(part.id), part.name, whole_input(part.text))


class MessageStream:
    """The events of a stream. The first of them is sent with the first output."""

    def __init__(self, context: MessageContext, reply: Reply) -> None:
        self._reply = reply
        self._context = context
        self._parts = Parts()
        self._has_begun = False
        self._index = -1
        self._text_head = b""  # how a text delta of the open block begins
        self._input = InputFragments()

    def around_text(self, choice: int) -> tuple[bytes, bytes] | None:
        is_open = self._parts.open is not None and self._parts.open.kind == "text"
        return (self._text_head, _DELTA_END) if is_open else None

    def push(self, piece: Piece) -> bytes:
        shown = piece if self._context.shown != "hidden" else piece._replace(reasoning="")
        events = self._bytes(self._parts.push(shown))
        return self._start() + events if events else b""

    def end(self) -> bytes:
        start, events = self._start(), self._bytes(self._parts.end())
        delta = MessageDelta(
            delta=self._context.end(self._reply),
            usage=self._context.usage(self._reply),
            context_management=self._context.context_management,
            unenforced=self._reply.unenforced() or UNSET,
            cache_explanation=self._reply.explanation or UNSET,
        )
        return start + events + _event(b"message_delta", _encode(delta)) + _STOP

    def _start(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        message = _encode(self._context.message(self._reply, [], None))
        return _event(b"message_start", b'{"type":"message_start","message":' + message + b"}") + _PING

    def _bytes(self, changes: Iterable[Change]) -> bytes:
        return b"".join(map(self._event, changes))

    def _event(self, change: Change) -> bytes:
        match change:
            case Begun(part):
                self._index += 1
                self._text_head = _DELTA % (self._index, _DELTA_HEADS["text"])
                return _BLOCK_START % (self._index, _encode(_empty_block(part)))
            case More(part, text):
                if part.kind == "call":
                    text = self._input.feed(text)
                elif part.kind == "reasoning" and self._context.shown == "omitted":
                    text = ""
                return self._delta(part.kind, text)
            case Ended(part):
                last = b""
                if part.kind == "call":
                    last = self._delta("call", self._input.end())
                elif part.kind == "reasoning":
                    last = self._delta("signature", self._context.signature(part))
                return last + _BLOCK_STOP % self._index

    def _delta(self, kind: str, text: str) -> bytes:
        if not text:
            return b""
        return _DELTA % (self._index, _DELTA_HEADS[kind]) + _encode(text) + _DELTA_END


def _empty_block(part: Part) -> Block:
    match part.kind:
        case "text":
            return TextBlock("")
        case "reasoning":
            return ThinkingBlock("", "")
        case "call":
            return ToolUseBlock(wire_id(part.id), part.name, _NO_INPUT)


def _event(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b"\ndata: " + data + b"\n\n"
