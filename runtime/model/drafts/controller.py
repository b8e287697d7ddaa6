"""Chooses how many drafts are computed, by what became of earlier ones and by the measured time of steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....kernels.common.draft_choice import KINDS_OF_SOURCE, choose_drafts, count_outcomes, learn_cost
from ....kernels.common.drafts import Drafts
from ...messages import DRAFT_SOURCES

DEPTHS = 16
FIRST_OUTCOMES = 2.0, 1.0
"""how many drafts count as tried and as right before there are outcomes"""
FIRST_SLOPE = 0.05
"""What a token adds to the time of a step before any was measured. It is less than on most machines, so that
drafts are computed at first, and their cost is learned from these."""
MAX_TOKENS = 1024
"""most tokens of a step whose drafts are chosen"""
MIN_DECLINED, MAX_DECLINED = 32, 512
"""Of so many steps whose drafts are not worth their time, one computes some nevertheless, because their cost
may have changed. The number doubles each time that they were not worth it."""


class StepCosts:
    """The time of steps by their tokens (see `learn_cost`). It is learned from steps that only decode as many
    rows as the step before, because others may need new inputs, which take longer."""

    def __init__(self) -> None:
        sizes = np.arange(MAX_TOKENS + 1)
        self._first: NDArray[np.float64] = (1.0 + FIRST_SLOPE * sizes).astype(np.float64)
        self.by_tokens = self._first.copy()
        """[MAX_TOKENS + 1], in a common unit"""
        self._factors, self._steps = np.ones(len(sizes)), np.zeros(len(sizes))
        self._latest = np.zeros(len(sizes), np.int64)
        self._level = np.zeros(1)
        self._has_program = np.zeros(len(sizes), np.bool_)
        self._observed = self._last_rows = 0

    def observe(self, tokens: int, drafts: int, milliseconds: float) -> None:
        """Learns from a step, except the first one of its size, which records a program. drafts: those among
        its tokens"""
        rows, last_rows = tokens - drafts, self._last_rows
        self._last_rows = rows
        if tokens > MAX_TOKENS:
            return
        if not self._has_program[tokens]:
            self._has_program[tokens] = True
        elif rows == last_rows:
            self._observed += 1
            of_sizes = self._factors, self._steps, self._latest, self._level, self._first, self.by_tokens
            learn_cost(tokens, milliseconds, self._observed, *of_sizes)

    def pass_over(self) -> None:
        """Notes a step that tells nothing about the cost of drafts."""
        self._last_rows = 0


class DraftController:
    """Chooses drafts for the highest number of expected tokens per second."""

    def __init__(self, slots: int) -> None:
        kinds = len(DRAFT_SOURCES) * KINDS_OF_SOURCE
        self._outcomes = np.full((kinds, DEPTHS, 2), FIRST_OUTCOMES)
        self._own = np.zeros((slots, 2))
        self.costs = StepCosts()
        self._declined, self._max_declined = 0, MIN_DECLINED

    def start(self, slot: int) -> None:
        """Notes that a slot begins another request."""
        self._own[slot] = 0.0

    def choose(self, drafts: Drafts, tokens: int, rows: int) -> Drafts | None:
        """The drafts that are worth their time, in a step that has `tokens` without them, of which `rows`
        sample; None if no draft is."""
        if tokens >= MAX_TOKENS:
            return None
        must_draft = self._declined >= self._max_declined
        if must_draft:
            self._declined, self._max_declined = 0, min(2 * self._max_declined, MAX_DECLINED)
        costs = self.costs.by_tokens
        counts = choose_drafts(drafts, self._outcomes, self._own, costs, tokens, rows, must_draft)
        if not counts.any():
            self._declined += 1
            return None
        if not must_draft:
            self._declined, self._max_declined = 0, MIN_DECLINED
        return drafts.cut(counts)

    def learn(self, drafts: Drafts, seen: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
        """Learns from what was sampled after drafts, also those that were not chosen.

        seen: [slots], the number of tokens that each has sampled; tokens: these tokens
        """
        count_outcomes(drafts, seen, tokens, self._outcomes, self._own)
