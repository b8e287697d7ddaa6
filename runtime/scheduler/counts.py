"""The scheduler's counters since its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Fields of `messages.Stats`, by the same names."""

    prompt_tokens_cached: int = 0
    prompt_tokens_computed: int = 0
    output_tokens: int = 0
    forced_tokens: int = 0
    retractions: int = 0
    steps: int = 0
