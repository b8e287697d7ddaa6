"""What the scheduler counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from ..messages import HitRate

RECENT_REQUESTS = 256


@dataclass(slots=True)
class Counts:
    """Counts since the start, with the names of the fields of `messages.Stats`."""

    prompt_tokens_cached: int = 0
    prompt_tokens_looked_up: int = 0  # prompt tokens of requests that read the cache
    prompt_tokens_computed: int = 0
    output_tokens: int = 0
    forced_tokens: int = 0
    retractions: int = 0
    steps: int = 0


class HitCounter:
    """Counts the prompt tokens of requests that read the cache, and how many of them were cached."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT_REQUESTS)

    def add(self, prompt_tokens: int, cached_tokens: int) -> None:
        self._counts.prompt_tokens_looked_up += prompt_tokens
        self._counts.prompt_tokens_cached += cached_tokens
        self._recent.append((prompt_tokens, cached_tokens))

    def measure(self) -> HitRate:
        """The hit rate since the start."""
        return _make_rate(self._counts.prompt_tokens_looked_up, self._counts.prompt_tokens_cached)

    def measure_recent(self) -> HitRate:
        """The hit rate of the last `RECENT_REQUESTS` requests."""
        prompt, cached = (sum(each[part] for each in self._recent) for part in (0, 1))
        return _make_rate(prompt, cached, len(self._recent))


def _make_rate(prompt: int, cached: int, requests: int | UnsetType = UNSET) -> HitRate:
    rate = round(cached / prompt, 4) if prompt else None
    return HitRate(rate=rate, prompt_tokens=prompt, cached_tokens=cached, requests=requests)
