"""How many prompt tokens the cache had."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

RECENT = 256  # requests


class Share(NamedTuple):
    prompt_tokens: int
    cached_tokens: int


class HitRate:
    """Since the start, and over the last requests."""

    def __init__(self) -> None:
        self.total = Share(0, 0)
        self.recent: deque[Share] = deque(maxlen=RECENT)

    def add(self, prompt_tokens: int, cached_tokens: int) -> None:
        self.total = _sum([self.total, Share(prompt_tokens, cached_tokens)])
        self.recent.append(Share(prompt_tokens, cached_tokens))

    @property
    def lately(self) -> Share:
        return _sum(list(self.recent))


def _sum(shares: list[Share]) -> Share:
    return Share(sum(share.prompt_tokens for share in shares), sum(share.cached_tokens for share in shares))
