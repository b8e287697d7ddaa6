"""A request's choices as they grow: the scheduler's outputs in, text and log-probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from ...runtime.messages import LeftOut, Logprobs, Output, Tokens
from ..generation import Arrival, Generation, early_end
from ..text.detokenizer import Detokenizer
from .responses import PromptTokensDetails, UnenforcedKeyword, Usage
from .token_logprobs import TokenLogprob, unpack


class Piece(NamedTuple):
    """What an output added to choice number `choice`, which has so many `tokens` now.

    `finish` comes with the last one, and `is_cut` where that ended what the model might have gone on with.
    """

    choice: int
    text: str
    logprobs: Sequence[TokenLogprob]
    finish: str | None
    tokens: int
    is_cut: bool


class ChoiceReply:
    """One choice. The stop token counts as a token of the reply but is part of its text only on demand."""

    def __init__(self, detokenizer: Detokenizer, shows_stop_token: bool, eos_tokens: Sequence[int]) -> None:
        self._detokenizer = detokenizer
        self._shows_stop_token = shows_stop_token
        self._eos_tokens = eos_tokens
        self._tokens: list[Tokens] = []
        self._characters = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.prompt_logprobs: Logprobs | None = None
        self.finish: str | None = None
        self.stop_reason: str | int | None = None

    @property
    def tokens(self) -> Tokens:
        return b"".join(self._tokens)[: 4 * self.completion_tokens]

    def push(self, index: int, output: Output) -> Piece:
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens or 0)
        self.prompt_logprobs = self.prompt_logprobs or output.prompt_logprobs
        self._tokens.append(output.tokens)
        hidden = 1 if output.stop_token is not None and not self._shows_stop_token else 0
        delta = self._detokenizer.push(
            output.tokens[: len(output.tokens) - 4 * hidden], final=output.finish is not None
        )
        self._characters += len(delta.text)
        self.completion_tokens = delta.tokens_kept
        offsets = delta.offsets
        if delta.stopped is not None:
            self.finish, self.stop_reason = "stop", delta.stopped
        else:
            self.finish = output.finish
            self.completion_tokens += hidden
            offsets += (self._characters,) * hidden
            if output.stop_token not in self._eos_tokens:
                self.stop_reason = output.stop_token
        entries = unpack(output.tokens, output.logprobs, offsets) if output.logprobs else ()
        is_cut = self.finish == "length" or isinstance(self.stop_reason, str)
        return Piece(index, delta.text, entries, self.finish, self.completion_tokens, is_cut)


class Reply:
    """All choices of a request: `n` for each of its prompts, in that order."""

    def __init__(self, choices: Sequence[ChoiceReply], generation: Generation, n: int = 1) -> None:
        self.choices = choices
        self._n = n
        self._generation = generation
        self._stopped: list[tuple[int, int]] = []  # choices and how many tokens they keep

    @property
    def left_out(self) -> Sequence[LeftOut]:
        """What the grammar doesn't enforce."""
        return self._generation.left_out

    @property
    def done(self) -> bool:
        return all(choice.finish is not None for choice in self.choices)

    def push(self, arrivals: Sequence[Arrival]) -> list[Piece]:
        """May be called from any thread; `end_stopped` is to follow. Raises `RequestError`."""
        pieces = []
        for index, output, _ in arrivals:
            choice = self.choices[index]
            if choice.finish is not None:
                continue
            if output.finish in ("error", "abort"):
                raise early_end(output)
            pieces.append(choice.push(index, output))
            if choice.finish is not None and output.finish is None:
                self._stopped.append((index, choice.completion_tokens))
        return pieces

    def end_stopped(self) -> None:
        """End in the scheduler too the choices that a stop string ended. Only on the event loop."""
        for index, tokens in self._stopped:
            self._generation.finish(index, tokens)
        self._stopped.clear()

    def unenforced(self) -> list[UnenforcedKeyword] | UnsetType:
        """What the schema asks and the reply need not keep, if anything: formats that nobody knows, and all
        else where that is allowed. Where it isn't, calls are checked for what else the grammar leaves out."""
        grammar = self._generation.requests[0].grammar
        left_out = self._generation.left_out
        if grammar is None or grammar.unenforced != "allow":
            left_out = [each for each in left_out if each.keyword == "format"]
        return [UnenforcedKeyword(each.keyword, each.path) for each in left_out] or UNSET

    def usage(self) -> Usage:
        """What is cached is told by each prompt's first choice."""
        prompt_tokens = sum(len(request.prompt) // 4 for request in self._generation.requests[:: self._n])
        completion_tokens = sum(choice.completion_tokens for choice in self.choices)
        firsts = self.choices[:: self._n]
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(sum(choice.cached_tokens for choice in firsts)),
        )
