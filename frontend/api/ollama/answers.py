"""Replies and errors on the wire: a stream of lines of JSON, or one object."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from ....runtime.errors import RequestError
from ...core.cut_input import whole_input
from ...core.logprobs import TokenLogprob as Entry
from ...core.parts import Change, Ended, Part, Parts, Piece
from ...core.reply import Reply
from ...core.text.tokenizer import Tokenizer
from .responses import Answer, CalledFunction, ErrorResponse, ReplyMessage, TokenLogprob, ToolCall, TopLogprob

_encode = msgspec.json.encode


def now() -> str:
    """The current time in RFC 3339."""
    return rfc3339(datetime.now(UTC))


def rfc3339(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


class Line(NamedTuple):
    """The texts, calls and log-probabilities of one line, or of a whole reply."""

    content: str = ""
    thinking: str = ""
    calls: Sequence[ToolCall] = ()
    logprobs: Sequence[Entry] = ()


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

    def fields(self, line: Line) -> dict[str, Any]:
        thinking = (line.thinking if self.shows_thinking else "") or UNSET
        logprobs = [self._logprob(entry) for entry in line.logprobs] if self.wants_logprobs else UNSET
        common = {"model": self.model, "created_at": now(), "logprobs": logprobs}
        if not self.is_chat:
            return {**common, "response": line.content, "thinking": thinking}
        calls = list(line.calls) or UNSET
        message = ReplyMessage(content=line.content, thinking=thinking, tool_calls=calls)
        return {**common, "message": message}

    def around_content(self) -> tuple[bytes, bytes, bytes]:
        """The constant bytes of a stream's lines that only add text: before the time, between the time and
        the text, and after the text."""
        fields = {**self.fields(Line()), "created_at": ""}
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
        """The durations of a reply. `prompt_eval_duration` lasts until the first token, with the queue."""
        first = self._first or context.prepared
        return {
            "total_duration": time.monotonic_ns() - context.arrived,
            "load_duration": context.prepared - context.arrived,
            "prompt_eval_duration": first - context.prepared,
            "eval_duration": max(1, self._last - first),  # not 0, because clients divide by it
        }


def _ending(context: AnswerContext, reply: Reply, line: Line, clock: _Clock) -> bytes:
    """The last line, or the whole answer."""
    usage = reply.usage()
    return _encode(
        Answer(
            **context.fields(line),
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


def _call(call: Part, number: int) -> ToolCall:
    """A call in Ollama's form. If a limit has cut its arguments, their complete members are kept."""
    return ToolCall(call.id, CalledFunction(number, call.name, whole_input(call.text)))


class LineAnswer:
    """One line for each output that has text, thinking or complete calls, and one at the end.

    If the request does not stream, one object at the end.
    """

    def __init__(self, context: AnswerContext, reply: Reply, *, streams: bool) -> None:
        self.reply = reply
        self._context = context
        self._streams = streams
        self._around = context.around_content()
        self._clock = _Clock()
        self._parts = Parts()
        self._calls: list[ToolCall] = []  # complete calls that are not sent yet
        if not streams:
            reply.choices[0].collect()

    def take(self, pieces: Sequence[Piece]) -> bytes:
        self._clock.tick()
        return b"".join(map(self._line, pieces)) if self._streams else b""

    def closing(self) -> bytes:
        if self._streams:
            calls = self._ended_calls(self._parts.end())
            last = self._written(Line(calls=calls)) if calls else b""
            return last + _ending(self._context, self.reply, Line(), self._clock) + b"\n"
        choice = self.reply.choices[0]
        line = Line(
            choice.parts.text("text"),
            choice.parts.text("reasoning"),
            [_call(call, number) for number, call in enumerate(choice.parts.calls())],
            choice.logprobs,
        )
        return _ending(self._context, self.reply, line, self._clock)

    def _line(self, piece: Piece) -> bytes:
        has_open_call = self._parts.open is not None and self._parts.open.kind == "call"
        if piece.content and not (piece.logprobs or piece.reasoning or piece.deltas or has_open_call):
            before, between, after = self._around
            return b"".join((before, _encode(now()), between, _encode(piece.content), after))
        calls = self._ended_calls(self._parts.push(piece))
        thinking = piece.reasoning if self._context.shows_thinking else ""
        line = Line(piece.content, thinking, calls, piece.logprobs)
        return self._written(line) if any(line) else b""

    def _ended_calls(self, changes: Iterable[Change]) -> list[ToolCall]:
        ended = [change.part for change in changes if isinstance(change, Ended)]
        first = len(self._calls)
        calls = [each for each in ended if each.kind == "call"]
        self._calls += [_call(each, first + number) for number, each in enumerate(calls)]
        return self._calls[first:]

    def _written(self, line: Line) -> bytes:
        return _encode(Answer(**self._context.fields(line), done=False)) + b"\n"


def error_json(error: RequestError, request_id: str = "") -> bytes:
    """The body of an error, without the `request_id`."""
    return _encode(ErrorResponse(error.message, error.code, error.param))


def error_line(error: RequestError) -> bytes:
    return error_json(error) + b"\n"
