"""Replies on the wire: a stream of events, or one message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ...core.cut_input import InputFragments, whole_input
from ...core.fields import JsonObject
from ...core.leases import Position
from ...core.parts import Begun, Change, Ended, Kind, More, Part, Parts, Piece
from ...core.reply import Reply
from .breakpoints import TTL_S
from .responses import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    CacheCreation,
    Delta,
    Event,
    InputDelta,
    Message,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    OutputTokensDetails,
    Ping,
    SignatureDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    Usage,
)
from .thinking import Shown, signature
from .tools import wire_id

_encode = msgspec.json.encode
_NO_INPUT = Raw(b"{}")
_DELTAS: dict[Kind, Callable[[str], Delta]] = {
    "text": TextDelta,
    "reasoning": ThinkingDelta,
    "call": InputDelta,
}


@dataclass(frozen=True, kw_only=True)
class MessageContext:
    """The facts about a request that its answer needs, streamed or whole.

    `page_tokens` is the size of a page of the prefix cache. `context_left` is the number of tokens that the
    context leaves for the reply, None if `max_tokens` is no more than that.
    """

    id: str
    model: str
    context_left: int | None
    page_tokens: int
    shown: Shown
    counts_thinking: bool
    context_management: JsonObject | UnsetType
    diagnostics: JsonObject | UnsetType
    breakpoints: Sequence[Position] = ()

    def usage(self, reply: Reply) -> Usage:
        """Counts the tokens. Input tokens are those that were neither found in the cache nor left there."""
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
            is_full = self.context_left is not None and choice.completion_tokens >= self.context_left
            reason = "model_context_window_exceeded" if is_full else "max_tokens"
        elif choice.has_tool_calls:
            reason = "tool_use"
        return MessageEnd(reason, None)

    def message(self, reply: Reply, content: list[Block], end: MessageEnd | None) -> Message:
        """The whole message, or without `end` the message that begins a stream."""
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
        """The body of an answer that is not streamed."""
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
    """The events of a stream. The first event is sent with the first output."""

    def __init__(self, context: MessageContext, reply: Reply) -> None:
        self._reply = reply
        self._context = context
        self._parts = Parts()
        self._has_begun = False
        self._index = -1
        self._around = b"", b""  # bytes around the text of a delta in the open block
        self._input = InputFragments()

    def around_text(self, choice: int) -> tuple[bytes, bytes] | None:
        is_open = self._parts.open is not None and self._parts.open.kind == "text"
        return self._around if is_open else None

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
        return start + events + _event(delta) + _event(MessageStop())

    def _start(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        return _event(MessageStart(self._context.message(self._reply, [], None))) + _event(Ping())

    def _bytes(self, changes: Iterable[Change]) -> bytes:
        return b"".join(map(self._write, changes))

    def _write(self, change: Change) -> bytes:
        match change:
            case Begun(part):
                self._index += 1
                before, after = self._write_delta(TextDelta, "").split(b'""')
                self._around = before, after
                return _event(BlockStart(self._index, _empty_block(part)))
            case More(part, text):
                if part.kind == "call":
                    text = self._input.feed(text)
                elif part.kind == "reasoning" and self._context.shown == "omitted":
                    text = ""
                return self._write_delta(_DELTAS[part.kind], text) if text else b""
            case Ended(part):
                last = b""
                if part.kind == "call" and (text := self._input.end()):
                    last = self._write_delta(InputDelta, text)
                elif part.kind == "reasoning":
                    last = self._write_delta(SignatureDelta, self._context.signature(part))
                return last + _event(BlockStop(self._index))

    def _write_delta(self, kind: Callable[[str], Delta], text: str) -> bytes:
        return _event(BlockDelta(self._index, kind(text)))


def _empty_block(part: Part) -> Block:
    match part.kind:
        case "text":
            return TextBlock("")
        case "reasoning":
            return ThinkingBlock("", "")
        case "call":
            return ToolUseBlock(wire_id(part.id), part.name, _NO_INPUT)


def _event(event: Event) -> bytes:
    """An event's bytes. Its name is its type."""
    name = str(event.__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + _encode(event) + b"\n\n"
