"""Replies on the wire: a stream of lines of JSON, or one object."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET

from ...core.logprobs import TokenLogprob as Entry
from ...core.reply import Piece, Reply
from ...core.text.tokenizer import Tokenizer
from .calls import Calls
from .responses import Answer, ReplyMessage, TokenLogprob, ToolCall, TopLogprob

_encode = msgspec.json.encode


def now() -> str:
    """The time in RFC 3339."""
    return rfc3339(datetime.now(UTC))


def rfc3339(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


class Part:
    """Text, thinking, calls and log-probabilities, of one line or of a whole reply."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.thinking: list[str] = []
        self.calls: list[ToolCall] = []
        self.logprobs: list[Entry] = []

    def __bool__(self) -> bool:
        return bool(self.content or self.thinking or self.calls or self.logprobs)

    def add(self, piece: Piece, calls: Iterable[ToolCall], *, shows_thinking: bool) -> None:
        if piece.content:
            self.content.append(piece.content)
        if piece.reasoning and shows_thinking:
            self.thinking.append(piece.reasoning)
        self.calls += calls
        self.logprobs += piece.logprobs


@dataclass(frozen=True, kw_only=True)
class AnswerContext:
    """The facts about a request that its answer needs, streamed or whole.

    `arrived` and `prepared` are times in ns of the monotonic clock: of the request's head, and of its
    prompt's tokens.
    """

    model: str
    is_chat: bool
    shows_thinking: bool
    wants_logprobs: bool
    wants_top: bool
    tokenizer: Tokenizer
    arrived: int
    prepared: int

    def fields(self, part: Part) -> dict[str, Any]:
        content, thinking = "".join(part.content), "".join(part.thinking) or UNSET
        logprobs = [self._logprob(entry) for entry in part.logprobs] if self.wants_logprobs else UNSET
        common = {"model": self.model, "created_at": now(), "logprobs": logprobs}
        if not self.is_chat:
            return {**common, "response": content, "thinking": thinking}
        message = ReplyMessage(content=content, thinking=thinking, tool_calls=part.calls or UNSET)
        return {**common, "message": message}

    def around_content(self) -> tuple[bytes, bytes, bytes]:
        """The bytes that all lines of a stream share whose only news is a piece of text: before the line's
        time, between the time and the text, and after the text."""
        fields = {**self.fields(Part()), "created_at": ""}
        before, between, after = _encode(Answer(**fields, done=False)).rsplit(b'""', 2)
        return before, between, after + b"\n"

    def _logprob(self, entry: Entry) -> TokenLogprob:
        text, data = self._described(entry.token)
        top = [self._top(token, logprob) for token, logprob in entry.top]
        assert entry.logprob is not None
        return TokenLogprob(text, entry.logprob, data, top if self.wants_top else UNSET)

    def _top(self, token: int, logprob: float) -> TopLogprob:
        text, data = self._described(token)
        return TopLogprob(text, logprob, data)

    def _described(self, token: int) -> tuple[str, list[int]]:
        return self.tokenizer.token_text(token), list(self.tokenizer.token_bytes(token))


class _Clock:
    """When the first and the last tokens of a reply arrived, in ns of the monotonic clock."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._last = 0

    def tick(self) -> None:
        self._last = time.monotonic_ns()
        if self._first is None:
            self._first = self._last

    def durations(self, context: AnswerContext) -> dict[str, Any]:
        """`prompt_eval_duration` ends with the first token, and includes the wait for a turn."""
        first = self._first or context.prepared
        return {
            "total_duration": time.monotonic_ns() - context.arrived,
            "load_duration": context.prepared - context.arrived,
            "prompt_eval_duration": first - context.prepared,
            "eval_duration": max(1, self._last - first),  # clients divide by it
        }


def _ending(context: AnswerContext, reply: Reply, part: Part, clock: _Clock) -> bytes:
    """The last line, or the whole answer. `part` is its text."""
    usage = reply.usage()
    return _encode(
        Answer(
            **context.fields(part),
            **clock.durations(context),
            done=True,
            done_reason="length" if reply.choices[0].finish == "length" else "stop",
            prompt_eval_count=usage.prompt_tokens,
            eval_count=usage.completion_tokens,
            prompt_cached_count=usage.cached_tokens,
            unenforced=reply.unenforced() or UNSET,
            cache_explanation=reply.explanation or UNSET,
        )
    )


class LineStream:
    """One line for each output that has text, thinking or complete calls, and one at the end."""

    def __init__(self, context: AnswerContext, reply: Reply) -> None:
        self.reply = reply
        self._context = context
        self._around = context.around_content()
        self._clock = _Clock()
        self._calls = Calls()

    def take(self, pieces: Sequence[Piece]) -> bytes:
        self._clock.tick()
        return b"".join(map(self._line, pieces))

    def closing(self) -> bytes:
        last = Part()
        last.calls = self._calls.end()
        line = self._written(last) if last else b""
        return line + _ending(self._context, self.reply, Part(), self._clock) + b"\n"

    def _line(self, piece: Piece) -> bytes:
        if piece.content and not (
            piece.logprobs or piece.reasoning or piece.tool_calls or self._calls.is_open
        ):
            before, between, after = self._around
            return b"".join((before, _encode(now()), between, _encode(piece.content), after))
        part = Part()
        calls = self._calls.push(piece.tool_calls, has_text=bool(piece.content))
        part.add(piece, calls, shows_thinking=self._context.shows_thinking)
        return self._written(part) if part else b""

    def _written(self, part: Part) -> bytes:
        return _encode(Answer(**self._context.fields(part), done=False)) + b"\n"


class WholeAnswer:
    """Collects everything; the body is made at the end."""

    def __init__(self, context: AnswerContext, reply: Reply) -> None:
        self.reply = reply
        self._context = context
        self._clock = _Clock()
        self._calls = Calls()
        self._part = Part()

    def take(self, pieces: Sequence[Piece]) -> bytes:
        self._clock.tick()
        for piece in pieces:
            calls = self._calls.push(piece.tool_calls, has_text=bool(piece.content))
            self._part.add(piece, calls, shows_thinking=self._context.shows_thinking)
        return b""

    def closing(self) -> bytes:
        self._part.calls += self._calls.end()
        return _ending(self._context, self.reply, self._part, self._clock)
