"""Chooses how many drafts are computed, by what became of earlier ones and by the measured time of steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....kernels.common.draft_choice import choose_drafts, count_outcomes, learn_cost
from ....kernels.common.drafts import Drafts
from ...messages import DRAFT_SOURCES

MATCHES = (8, 16, 32)
"""Drafts are told apart by whether their match has at least so many tokens."""
DEPTHS = 16
DECAY = 0.98
"""weight of the past in an outcome's average, so that about 50 outcomes count"""
FIRST_TRIED, FIRST_KEPT = 2.0, 1.0
"""what counts as tried and kept before there are outcomes"""
FIRST_SLOPE = 0.05
"""What a token adds to the time of a step before any was measured. It is less than on most machines, so that
drafts are computed at first, and their cost is learned from these."""
MAX_TOKENS = 1024
"""most tokens of a step whose drafts are chosen"""
MIN_DECLINED, MAX_DECLINED = 32, 512
"""Of so many steps whose drafts are not worth their time, one computes some nevertheless, because their cost
may have changed. The number doubles each time that they were not worth it."""


class StepCosts:
    """The time of steps by their tokens, learned from each step (see `learn_cost`)."""

    def __init__(self) -> None:
        sizes = np.arange(MAX_TOKENS + 1)
        self._first = 1.0 + FIRST_SLOPE * sizes
        self.by_tokens: NDArray[np.float64] = self._first.copy()
        """[MAX_TOKENS + 1], in a common unit"""
        self._factors, self._steps = np.ones(len(sizes)), np.zeros(len(sizes))
        self._latest = np.zeros(len(sizes), np.int64)
        self._level = np.zeros(1)
        self._has_program = np.zeros(len(sizes), np.bool_)
        self._observed = 0

    def observe(self, tokens: int, milliseconds: float) -> None:
        """Learns from a step that only decodes, except the first one of its size, which records a program."""
        if tokens > MAX_TOKENS:
            return
        if not self._has_program[tokens]:
            self._has_program[tokens] = True
            return
        self._observed += 1
        of_sizes = self._factors, self._steps, self._latest
        learn_cost(tokens, milliseconds, self._observed, *of_sizes, self._level, self._first, self.by_tokens)


class DraftController:
    """Chooses drafts for the highest number of expected tokens per second."""

    def __init__(self) -> None:
        kinds = len(DRAFT_SOURCES) * (len(MATCHES) + 1)
        self._tried = np.full((kinds, DEPTHS), FIRST_TRIED)
        self._kept = np.full((kinds, DEPTHS), FIRST_KEPT)
        self._costs = StepCosts()
        self._declined, self._most_declined = 0, MIN_DECLINED

    def choose(self, drafts: Drafts, tokens: int, rows: int) -> Drafts:
        """The drafts that are worth their time, in a step that has `tokens` without them, of which `rows`
        sample."""
        if tokens >= MAX_TOKENS:
            return Drafts.none(len(drafts.counts))
        must_draft = self._declined >= self._most_declined
        if must_draft:
            self._declined, self._most_declined = 0, min(2 * self._most_declined, MAX_DECLINED)
        acceptance, costs = self._kept / self._tried, self._costs.by_tokens
        counts = choose_drafts(drafts.counts, _kinds(drafts), acceptance, costs, tokens, rows, must_draft)
        if not counts.any():
            self._declined += 1
        elif not must_draft:
            self._declined, self._most_declined = 0, MIN_DECLINED
        return drafts.cut(counts)

    def learn(self, drafts: Drafts, seen: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
        """Learns from what was sampled after drafts, also those that were not chosen.

        seen: [slots], the number of tokens that each has sampled; tokens: these tokens
        """
        outcomes = self._tried, self._kept
        count_outcomes(_kinds(drafts), drafts.counts, drafts.tokens, seen, tokens, *outcomes, DECAY)

    def observe(self, tokens: int, milliseconds: float) -> None:
        """Learns from the time of a step that only decodes."""
        self._costs.observe(tokens, milliseconds)


def _kinds(drafts: Drafts) -> NDArray[np.int32]:
    matches = np.searchsorted(MATCHES, drafts.matched, side="right")
    kinds: NDArray[np.int32] = (drafts.sources * (len(MATCHES) + 1) + matches).astype(np.int32)
    return kinds
