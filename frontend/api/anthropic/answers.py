"""Replies on the wire: a stream of events, or one message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from ...core.cut_input import InputFragments, whole_input
from ...core.fields import JsonObject
from ...core.leases import Position
from ...core.reply import Piece, Reply
from .blocks import Begun, Blocks, Ended, Event, More, Signed
from .breakpoints import TTL_S
from .events import MessageDelta
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
from .thinking import Shown

_encode = msgspec.json.encode
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
    "thinking": b'{"type":"thinking_delta","thinking":',
    "signature": b'{"type":"signature_delta","signature":',
    "tool_use": b'{"type":"input_json_delta","partial_json":',
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


class MessageStream:
    """The events of a stream. The first of them is sent with the first output."""

    def __init__(self, context: MessageContext, reply: Reply) -> None:
        self.reply = reply
        self._context = context
        self._blocks = Blocks(context.shown)
        self._has_begun = False
        self._index = -1
        self._text_head = b""  # how a text delta of the open block begins
        self._input = InputFragments()

    def take(self, pieces: Sequence[Piece]) -> bytes:
        events = b"".join([self._events(piece) for piece in pieces])
        return self._start() + events if events and not self._has_begun else events

    def closing(self) -> bytes:
        start = b"" if self._has_begun else self._start()
        delta = MessageDelta(
            delta=self._context.end(self.reply),
            usage=self._context.usage(self.reply),
            context_management=self._context.context_management,
            unenforced=self.reply.unenforced() or UNSET,
            cache_explanation=self.reply.explanation or UNSET,
        )
        return start + self._bytes(self._blocks.end()) + _event(b"message_delta", _encode(delta)) + _STOP

    def _start(self) -> bytes:
        self._has_begun = True
        message = _encode(self._context.message(self.reply, [], None))
        return _event(b"message_start", b'{"type":"message_start","message":' + message + b"}") + _PING

    def _events(self, piece: Piece) -> bytes:
        if self._blocks.continues_text(piece):
            return self._text_head + _encode(piece.content) + _DELTA_END
        return self._bytes(self._blocks.push(piece))

    def _bytes(self, events: Iterable[Event]) -> bytes:
        return b"".join(map(self._event, events))

    def _event(self, event: Event) -> bytes:
        match event:
            case More("tool_use", text):
                return self._delta("tool_use", self._input.feed(text))
            case More(kind, text):
                return self._delta(kind, text)
            case Begun(block):
                self._index += 1
                self._text_head = _DELTA % (self._index, _DELTA_HEADS["text"])
                return _BLOCK_START % (self._index, _encode(block))
            case Signed(signature):
                return self._delta("signature", signature)
            case Ended():
                return self._delta("tool_use", self._input.end()) + _BLOCK_STOP % self._index

    def _delta(self, kind: str, text: str) -> bytes:
        if not text:
            return b""
        return _DELTA % (self._index, _DELTA_HEADS[kind]) + _encode(text) + _DELTA_END


def _event(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b"\ndata: " + data + b"\n\n"


class MessageWhole:
    """Collects everything; the body is made at the end."""

    def __init__(self, context: MessageContext, reply: Reply) -> None:
        self.reply = reply
        self._context = context
        self._blocks = Blocks(context.shown)
        self._content: list[Block] = []
        self._texts: list[str] = []

    def take(self, pieces: Sequence[Piece]) -> bytes:
        for piece in pieces:
            self._add(self._blocks.push(piece))
        return b""

    def closing(self) -> bytes:
        self._add(self._blocks.end())
        context = self._context
        return _encode(context.message(self.reply, self._content, context.end(self.reply)))

    def _add(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Begun(block):
                    self._content.append(block)
                case More(_, text):
                    self._texts.append(text)
                case Signed(signature):
                    block = self._content[-1]
                    assert isinstance(block, ThinkingBlock)
                    block.signature = signature
                case Ended():
                    self._complete(self._content[-1])

    def _complete(self, block: Block) -> None:
        text = "".join(self._texts)
        self._texts.clear()
        match block:
            case TextBlock():
                block.text = text
            case ThinkingBlock():
                block.thinking = text
            case ToolUseBlock():
                block.input = whole_input(text)
