"""Replies of /generate on the wire: a stream of events, or one body. Token ids are exact in both."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, Struct

from ....runtime.errors import RequestError
from ....runtime.messages import Tokens
from ...core.logprobs import TokenLogprob, prompt_entries
from ...core.parts import Piece
from ...core.reply import ChoiceReply, Reply
from .protocol import Choice, End, ErrorBody, ErrorResponse, Event, Generated, TopLogprobs

_encode = msgspec.json.encode


def error_json(error: RequestError, request_id: str = "") -> bytes:
    """The body of an error, without the `request_id`."""
    return _encode(ErrorResponse(ErrorBody(error.message, error.code, error.param)))


def error_event(error: RequestError) -> bytes:
    return b"data: " + error_json(error) + b"\n\n"


@dataclass(frozen=True, kw_only=True)
class Form:
    """Functions that write an answer's parts. `always_streams`: a whole answer is a stream of one part."""

    event: Callable[[Event], bytes]
    end: Callable[[End], bytes]
    whole: Callable[[Generated], bytes]
    error: Callable[[RequestError], bytes]
    always_streams: bool = False


def _sent_event(value: Struct) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


HTTP_FORM = Form(
    event=_sent_event,
    end=lambda end: _sent_event(end) + b"data: [DONE]\n\n",
    whole=_encode,
    error=error_event,
)


@dataclass(frozen=True, kw_only=True)
class AnswerContext:
    """The facts about a request that its answer needs. `choices` is their number for each prompt."""

    form: Form
    id: str
    model: str
    fingerprint: str
    prompts: Sequence[Tokens]
    choices: int
    wants_logprobs: bool
    wants_prompt_logprobs: bool
    wants_prompt_ids: bool

    def end(self, reply: Reply) -> End:
        return End(
            id=self.id,
            model=self.model,
            system_fingerprint=self.fingerprint,
            usage=reply.usage(),
            prompt_token_ids=[ids(prompt) for prompt in self.prompts] if self.wants_prompt_ids else None,
            unenforced=reply.unenforced(),
            cache_explanation=reply.explanation or UNSET,
        )

    def body(self, reply: Reply) -> bytes:
        """The body of an answer that is not streamed."""
        choices = [self._choice(index, choice) for index, choice in enumerate(reply.choices)]
        return self.form.whole(Generated(**msgspec.structs.asdict(self.end(reply)), choices=choices))

    def _choice(self, index: int, choice: ChoiceReply) -> Choice:
        tokens = ids(choice.tokens)
        entries = choice.logprobs[: len(tokens)]
        place = index // self.choices
        prompt = self.prompts[place]
        scored: Sequence[TokenLogprob] = ()
        if self.wants_prompt_logprobs:
            scored = prompt_entries(prompt, choice.prompt_logprobs, range(len(prompt) // 4))
        return Choice(
            index=index,
            prompt_index=place,
            text=choice.parts.text("text"),
            token_ids=tokens,
            finish_reason=choice.finish,
            stop_reason=choice.stop_reason,
            logprobs=_values(entries) if self.wants_logprobs else None,
            top_logprobs=_tops(entries) if self.wants_logprobs else None,
            prompt_logprobs=[entry.logprob for entry in scored] if self.wants_prompt_logprobs else None,
            prompt_top_logprobs=_tops(scored) if self.wants_prompt_logprobs else None,
        )


def ids(tokens: Tokens) -> list[int]:
    return array("i", tokens).tolist()


def _values(entries: Sequence[TokenLogprob]) -> list[float]:
    return [entry.logprob for entry in entries if entry.logprob is not None]


def _tops(entries: Sequence[TokenLogprob]) -> TopLogprobs:
    return [list(entry.top) for entry in entries]


class EventStream:
    """Events with the text and tokens that outputs add to a choice. Tokens that may belong to a stop string
    are held back with their text."""

    def __init__(self, context: AnswerContext, reply: Reply) -> None:
        self.reply = reply
        self._context = context
        self._sent = [0 for _ in reply.choices]  # tokens sent so far, by choice
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in reply.choices]  # entries not sent yet

    def take(self, pieces: Sequence[Piece]) -> bytes:
        """One event for each choice that has pieces, with its tokens up to the last piece."""
        if len(pieces) == 1:
            (piece,) = pieces
            self._logprobs[piece.choice] += piece.logprobs
            return self._event(piece.choice, piece.content, piece.finish)
        events = b""
        for index in dict.fromkeys(piece.choice for piece in pieces):
            own = [piece for piece in pieces if piece.choice == index]
            for piece in own:
                self._logprobs[index] += piece.logprobs
            events += self._event(index, "".join(piece.content for piece in own), own[-1].finish)
        return events

    def closing(self) -> bytes:
        return self._context.form.end(self._context.end(self.reply))

    def _event(self, index: int, text: str, finish: str | None) -> bytes:
        choice = self.reply.choices[index]
        tokens = ids(choice.settled_tokens(self._sent[index]))
        if not (tokens or text or finish):
            return b""
        waiting = self._logprobs[index]
        entries, self._logprobs[index] = waiting[: len(tokens)], waiting[len(tokens) :]
        self._sent[index] += len(tokens)
        wants = self._context.wants_logprobs
        event = Event(
            index=index,
            text=text,
            token_ids=tokens,
            logprobs=_values(entries) if wants else None,
            top_logprobs=_tops(entries) if wants else None,
            finish_reason=finish,
            stop_reason=choice.stop_reason if finish else None,
        )
        return self._context.form.event(event)
