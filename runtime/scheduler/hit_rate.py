"""Counts prompt tokens, and how many of them were cached."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

RECENT = 256  # requests


class Share(NamedTuple):
    prompt_tokens: int
    cached_tokens: int


class HitRate:
    """Counts since the start, and over the last `RECENT` requests."""

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
