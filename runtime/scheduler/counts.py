"""What the scheduler counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

RECENT_REQUESTS = 256


@dataclass(slots=True)
class Counts:
    """Since the start; fields of `messages.Stats`, by the same names."""

    prompt_tokens_cached: int = 0
    prompt_tokens_computed: int = 0
    output_tokens: int = 0
    forced_tokens: int = 0
    retractions: int = 0
    steps: int = 0


class PromptTokens(NamedTuple):
    prompt_tokens: int
    cached_tokens: int


class HitRate:
    """The share of cached prompt tokens, since the start and over the last `RECENT_REQUESTS` requests."""

    def __init__(self) -> None:
        self.total = PromptTokens(0, 0)
        self.recent: deque[PromptTokens] = deque(maxlen=RECENT_REQUESTS)

    def add(self, prompt_tokens: int, cached_tokens: int) -> None:
        self.recent.append(PromptTokens(prompt_tokens, cached_tokens))
        self.total = PromptTokens(
            self.total.prompt_tokens + prompt_tokens, self.total.cached_tokens + cached_tokens
        )

    def sum_recent(self) -> PromptTokens:
        return PromptTokens(
            sum(each.prompt_tokens for each in self.recent), sum(each.cached_tokens for each in self.recent)
        )
