"""Turns the pieces of one reply into parts of a `Completion`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .completion import Completion, CompletionPart
from .request.logprobs import TokenLogprob
from .request.reply import Piece, Reply


class EngineReply:
    """One attempt at a request, which has one choice."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self._parts: list[CompletionPart] = []

    def take(self, pieces: Sequence[Piece]) -> list[CompletionPart]:
        parts = [self._part(piece) for piece in pieces]
        self._parts += parts
        return parts

    def closing(self) -> Completion:
        """The whole reply."""
        (choice,) = self.reply.choices
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
            usage=self.reply.usage(),
            unenforced=self.reply.unenforced(),
        )

    def _part(self, piece: Piece) -> CompletionPart:
        return CompletionPart(
            text=piece.content,
            reasoning=piece.reasoning,
            logprobs=piece.logprobs,
            finish_reason=piece.finish,
            usage=None if piece.finish is None else self.reply.usage(),
        )
