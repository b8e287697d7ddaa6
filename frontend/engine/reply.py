"""Turns the pieces of a reply into parts of a `Completion`, the whole `Completion` or a `Score`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from ...runtime.messages import Generate
from ..core.logprobs import TokenLogprob, prompt_entries
from ..core.parts import Piece
from ..core.reply import ChoiceReply, Reply
from ..core.tools.reply_parser import ToolCallDelta
from .completion import Choice, Completion, CompletionPart, Score, ToolCall, ToolCallPart


class EngineReply:
    """One attempt at a request, which has one prompt."""

    def __init__(self, reply: Reply, request: Generate) -> None:
        """`request` is the scheduler's request of the first choice."""
        self.reply = reply
        self._prompt = request.prompt
        self._wants_prompt_logprobs = request.sampling.prompt_logprobs is not None
        for choice in reply.choices:
            choice.collect()

    def take(self, pieces: Sequence[Piece]) -> list[CompletionPart]:
        return [self._part(piece) for piece in pieces]

    def closing(self, json_schema: object = None) -> Completion:
        """The whole reply. `json_schema` is the request's option."""
        return Completion(
            choices=[_choice(choice, json_schema) for choice in self.reply.choices],
            usage=self.reply.usage(),
            prompt_tokens=array("i", self._prompt),
            prompt_logprobs=self._prompt_logprobs(),
            unenforced=self.reply.unenforced(),
        )

    def score(self) -> Score:
        """The sum of the prompt's log-probabilities."""
        logprobs = self.reply.choices[0].prompt_logprobs
        assert logprobs is not None
        chosen = np.frombuffer(logprobs.chosen, "<f4").astype(np.float64)
        return Score(float(chosen.sum()), len(chosen), self.reply.usage())

    def _prompt_logprobs(self) -> list[TokenLogprob]:
        if not self._wants_prompt_logprobs:
            return []
        unknown = [0] * (len(self._prompt) // 4)
        return prompt_entries(self._prompt, self.reply.choices[0].prompt_logprobs, unknown)

    def _part(self, piece: Piece) -> CompletionPart:
        is_last = piece.finish is not None
        return CompletionPart(
            choice=piece.choice,
            text=piece.content,
            reasoning=piece.reasoning,
            tool_calls=[_call_part(delta) for delta in piece.tool_calls],
            logprobs=piece.logprobs,
            finish_reason=_finish_reason(self.reply.choices[piece.choice]) if is_last else None,
            usage=self.reply.usage() if is_last else None,
        )


def _choice(reply: ChoiceReply, json_schema: object) -> Choice:
    finish = _finish_reason(reply)
    assert finish is not None
    return Choice(
        text=reply.parts.text("text"),
        reasoning=reply.parts.text("reasoning"),
        tool_calls=[ToolCall(call.id, call.name, call.text) for call in reply.parts.calls()],
        tokens=np.frombuffer(reply.tokens, "<i4").tolist(),
        finish_reason=finish,
        stop_reason=reply.stop_reason,
        logprobs=reply.logprobs,
        json_schema=json_schema,
    )


def _finish_reason(reply: ChoiceReply) -> str | None:
    return "tool_calls" if reply.has_tool_calls and reply.finish == "stop" else reply.finish


def _call_part(delta: ToolCallDelta) -> ToolCallPart:
    return ToolCallPart(delta.index, delta.id, delta.name, delta.arguments_fragment)
