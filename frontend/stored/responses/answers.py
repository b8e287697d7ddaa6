"""Responses on the wire: a stream of events, or one body."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, structs

from ....runtime.errors import RequestError
from ...core.parts import Piece
from ...core.reply import Reply
from ...core.text.tokenizer import Tokenizer
from .events import Events
from .output import Change, Output
from .responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputTokensDetails,
    Response,
    ResponseError,
    ResponseStatus,
    Usage,
)
from .tools import Called

_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


@dataclass(frozen=True, kw_only=True)
class ResponseContext:
    """The facts about a request that its response needs, streamed or whole.

    `begun` is the response before its first output. `encodes`: reasoning items have `encrypted_content`.
    `prewarms`: the prompt is computed without a reply.
    """

    begun: Response
    called: Mapping[str, Called]
    tokenizer: Tokenizer
    encodes: bool
    prewarms: bool

    def new_output(self) -> Output:
        return Output(self.called, self.tokenizer, encodes=self.encodes)

    def ended(self, reply: Reply, items: Sequence[OutputItem]) -> Response:
        is_cut = reply.choices[0].finish == "length" and not self.prewarms
        response = structs.replace(
            self.begun,
            status="incomplete" if is_cut else "completed",
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
            completed_at=None if is_cut else int(time.time()),
            output=list(items),
            usage=self._usage(reply),
            unenforced=reply.unenforced() or UNSET,
            cache_explanation=reply.explanation or UNSET,
        )
        return without_excerpts(response) if response.background else response

    def _usage(self, reply: Reply) -> Usage:
        counts = reply.usage()
        return Usage(
            input_tokens=counts.prompt_tokens,
            input_tokens_details=InputTokensDetails(counts.cached_tokens, counts.written_tokens),
            output_tokens=counts.completion_tokens,
            output_tokens_details=OutputTokensDetails(reply.choices[0].reasoning_tokens),
            total_tokens=counts.prompt_tokens + counts.completion_tokens,
        )


def without_excerpts(response: Response) -> Response:
    """The response as it may be stored: its explanation has no texts, because the earlier prompt may belong
    to a request with `store` false."""
    explanation = response.cache_explanation
    if explanation is UNSET or explanation.difference is None:
        return response
    difference = structs.replace(explanation.difference, prompt="", earlier="")
    return structs.replace(response, cache_explanation=structs.replace(explanation, difference=difference))


def failed(response: Response, error: RequestError, items: Sequence[OutputItem] = ()) -> Response:
    code = _CODES.get(error.status, "server_error")
    return unfinished(response, "failed", ResponseError(code, error.message), items)


def unfinished(
    response: Response,
    status: ResponseStatus,
    error: ResponseError | None = None,
    items: Sequence[OutputItem] = (),
) -> Response:
    """The response after an early end."""
    return structs.replace(response, status=status, error=error, output=list(items))


class ResponseAnswer:
    """One attempt at a response. `final` is the response once the reply has ended.

    `streams`: `take` and `closing` return events; otherwise `closing` returns the whole body.
    """

    def __init__(self, context: ResponseContext, reply: Reply, *, streams: bool) -> None:
        self.reply = reply
        self.final: Response | None = None
        self.stream = Events(context.begun)
        self._context = context
        self._output = context.new_output()
        self._streams = streams
        self._before_end = b""
        """The events of the answer's last part, without the last event."""

    def cut_items(self) -> Sequence[OutputItem]:
        """The items so far. The last one may be incomplete."""
        deque(self._output.end(is_cut=True), maxlen=0)
        return self._output.items

    def take(self, pieces: Sequence[Piece]) -> bytes:
        return b"".join([self._events(piece) for piece in pieces])

    def closing(self) -> bytes:
        self._before_end = self._taken(self._output.end(is_cut=self.reply.choices[0].finish == "length"))
        self.final = self._context.ended(self.reply, self._output.items)
        if not self._streams:
            return msgspec.json.encode(self.final)
        self._before_end += self.stream.start()
        return self._before_end + self.stream.of_end(self.final)

    def closing_instead(self, final: Response) -> bytes:
        """Replaces the last part from `closing` by one that says that the response could not be stored."""
        self.final = final
        if not self._streams:
            return msgspec.json.encode(final)
        return self._before_end + self.stream.of_end_instead(final)

    def _events(self, piece: Piece) -> bytes:
        if self._output.push_text(piece):
            return self.stream.of_text(piece.content) if self._streams else b""
        return self._taken(self._output.push(piece))

    def _taken(self, changes: Iterable[Change]) -> bytes:
        if self._streams:
            return self.stream.of_changes(changes)
        deque(changes, maxlen=0)
        return b""


class Attempts:
    """The attempts at one response, of which the latest counts. `final` is the response once it has ended."""

    def __init__(self, context: ResponseContext, *, streams: bool) -> None:
        self._context = context
        self._streams = streams
        self._latest: ResponseAnswer | None = None
        self._failed: Response | None = None

    @property
    def final(self) -> Response | None:
        return self._failed or (None if self._latest is None else self._latest.final)

    def begin(self, reply: Reply) -> ResponseAnswer:
        self._latest = ResponseAnswer(self._context, reply, streams=self._streams)
        return self._latest

    def error_event(self, error: RequestError) -> bytes:
        """The last events of a stream that ends with an error."""
        items = () if self._latest is None else self._latest.cut_items()
        self._failed = failed(self._context.begun, error, items)
        stream = Events(self._context.begun) if self._latest is None else self._latest.stream
        return stream.of_end(self._failed)

    def closing_instead(self, final: Response) -> bytes:
        """Replaces the last part from `closing` by one that says that the response could not be stored."""
        assert self._latest is not None, "the reply has ended"
        return self._latest.closing_instead(final)

    def cancelled(self) -> tuple[Response, bytes]:
        """The response so far, cancelled, and the last events of its stream."""
        if self._latest is not None and self._latest.final is not None:
            final = structs.replace(self._latest.final, status="cancelled", completed_at=None)
            return final, self._latest.closing_instead(final)
        items = () if self._latest is None else self._latest.cut_items()
        final = unfinished(self._context.begun, "cancelled", None, items)
        stream = Events(self._context.begun) if self._latest is None else self._latest.stream
        return final, stream.of_end(final)
