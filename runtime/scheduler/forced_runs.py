"""Jump-forward: tokens that a grammar forces next are appended without a forward pass for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...grammars import ForcedText
from .request import Request

MIN_RUN = 2  # tokens of the shortest run; the first one replaces a token that is being sampled


class ForcedTokenizer(Protocol):
    """Cuts text into tokens as the tokenizer does, see `grammars.ForcedTextTokenizer`."""

    def sure_tokens(self, forced: ForcedText, /) -> Sequence[int]: ...

    def ending_tokens(self, text: bytes, /) -> Sequence[int] | None: ...


class ForcedRuns:
    def __init__(self, tokenizer: ForcedTokenizer, eos_tokens: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_tokens = eos_tokens

    def next(self, request: Request) -> list[int]:
        """The forced tokens after the request's tokens, within its limits; empty if too few to save a step.

        A waiting request keeps at least one token to sample, because only a step can end it. Requests for
        log-probabilities get no forced tokens, because only sampled tokens have log-probabilities.
        """
        wants_logprobs = request.sampling.logprobs is not None or request.sampling.prompt_logprobs is not None
        if request.constraint is None or wants_logprobs:
            return []
        forced = request.constraint.forced_text()
        if forced is None:
            return []
        run = self._cut_to_permitted(request, self._tokenizer.sure_tokens(forced))
        if request.held is not None and len(run) <= request.held.count_rewound():
            return []
        return run if len(run) >= MIN_RUN or self._eos_tokens.intersection(run) else []

    def _cut_to_permitted(self, request: Request, tokens: Sequence[int]) -> list[int]:
        """The leading tokens that the request's limits, stop ids and biases do not affect."""
        sampling = request.sampling
        disputed = {*sampling.stop_token_ids, *sampling.logit_bias}
        is_waiting = request.held is None
        run: list[int] = []
        for token in tokens[: max(0, request.max_length - request.length - is_waiting)]:
            is_early = is_waiting or request.output_length + len(run) < sampling.min_tokens
            if token in disputed or (is_early and token in self._eos_tokens):
                break
            run.append(token)
        return run
