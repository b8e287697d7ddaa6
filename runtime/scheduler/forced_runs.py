"""Tokens that a request must come to next, appended without a forward pass for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...grammars import ForcedText
from .request import Request

MIN_RUN = 2  # the first takes the place of a token that is being sampled


class Segments(Protocol):
    """Cuts text into tokens as the tokenizer does, see `grammars.Segmenter`."""

    def sure_tokens(self, forced: ForcedText, /) -> Sequence[int]: ...

    def ending_tokens(self, text: bytes, /) -> Sequence[int] | None: ...


class ForcedRuns:
    def __init__(self, segments: Segments, eos_tokens: frozenset[int]) -> None:
        self._segments = segments
        self._eos_tokens = eos_tokens

    def next(self, request: Request) -> list[int]:
        """What must follow the request's tokens, within its limits; empty if that isn't worth a chunk.

        A request that doesn't run yet is left something to sample, as only steps end it.
        Nothing is forced on requests for log-probabilities, as only what is sampled has one.
        """
        wants_logprobs = request.sampling.logprobs is not None or request.sampling.prompt_logprobs is not None
        if request.constraint is None or wants_logprobs:
            return []
        forced = request.constraint.forced_text()
        if forced is None:
            return []
        run = self._permitted(request, self._segments.sure_tokens(forced))
        return run if len(run) >= MIN_RUN or self._eos_tokens.intersection(run) else []

    def _permitted(self, request: Request, tokens: Sequence[int]) -> list[int]:
        """Up to the token that the request's limits, stop ids or biases have a say in."""
        sampling = request.sampling
        disputed = {*sampling.stop_token_ids, *sampling.logit_bias}
        starts = request.home is None
        run: list[int] = []
        for token in tokens[: max(0, request.max_length - request.length - starts)]:
            is_early = starts or request.output_length + len(run) < sampling.min_tokens
            if token in disputed or (is_early and token in self._eos_tokens):
                break
            run.append(token)
        return run
