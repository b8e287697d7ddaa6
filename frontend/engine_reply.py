"""One reply of `Engine` as it grows: the scheduler's outputs in, parts of a `Completion` out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .completion import Completion, CompletionPart, Usage
from .engine_requests import Asked
from .generation import Arrival, Generation
from .openai.reply import Piece, Reply
from .openai.requests import choice_reply
from .openai.token_logprobs import TokenLogprob
from .service import Service
from .text.reasoning import ReasoningParser


class EngineReply:
    """A fresh one for each attempt: after a restart nothing of the last attempt counts."""

    def __init__(self, service: Service, asked: Asked, generation: Generation) -> None:
        self._service = service
        self._asked = asked
        shown = frozenset[int]()
        self._reasoning: ReasoningParser | None = None
        if asked.rendered is not None and service.reasoning is not None:
            shown = service.reasoning.shown_special(service.tokenizer)
            inside = service.reasoning.open_at_end_of(asked.rendered)
            self._reasoning = ReasoningParser(service.reasoning, inside)
        self._choice = choice_reply(
            service, asked.fields, asked.stop, continues_text=asked.rendered is None, shown_special=shown
        )
        self._reply = Reply([self._choice], generation)
        self._text: list[str] = []
        self._parts: list[CompletionPart] = []

    @property
    def done(self) -> bool:
        return self._reply.done

    def push(self, arrivals: Sequence[Arrival]) -> list[CompletionPart]:
        """Raises `RequestError` if the request failed."""
        parts = [self._part(piece) for piece in self._reply.push(arrivals)]
        self._reply.end_stopped()
        self._parts += parts
        return parts

    def completion(self) -> Completion:
        """The whole, once it is done."""
        choice = self._choice
        assert choice.finish is not None
        logprobs: list[TokenLogprob] = []
        for part in self._parts:
            logprobs.extend(part.logprobs)
        return Completion(
            text="".join(part.text for part in self._parts),
            reasoning="".join(part.reasoning for part in self._parts),
            tokens=np.frombuffer(choice.tokens, "<i4").tolist(),
            finish_reason=choice.finish,
            stop_reason=choice.stop_reason,
            logprobs=logprobs,
            usage=self._usage(),
            unenforced=self._reply.unenforced() or [],
        )

    def _part(self, piece: Piece) -> CompletionPart:
        self._text.append(piece.text)
        text, reasoning = piece.text, ""
        if self._reasoning is not None:
            delta = self._reasoning.push(piece.text, final=piece.finish is not None)
            text, reasoning = delta.content, delta.reasoning
        if piece.finish is None:
            return CompletionPart(text=text, reasoning=reasoning, logprobs=piece.logprobs)
        self._remember()
        return CompletionPart(
            text=text,
            reasoning=reasoning,
            logprobs=piece.logprobs,
            finish_reason=piece.finish,
            usage=self._usage(),
        )

    def _remember(self) -> None:
        """So that the conversation's next turn begins with exactly these tokens."""
        if self._asked.rendered is not None:
            text, namespace = "".join(self._text), self._asked.request.namespace
            self._service.memo.remember(
                namespace, self._asked.rendered, self._asked.prompt, text, self._choice.tokens
            )

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self._asked.prompt) // 4,
            cached_tokens=self._choice.cached_tokens,
            completion_tokens=self._choice.completion_tokens,
        )
