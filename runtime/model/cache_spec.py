"""What a model's attention layers keep for each token."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheSpec:
    """The heads of the attention layers, which all have pages of one shape, and how far each layer sees."""

    heads: int
    """of queries"""
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    """each layer's sliding window in tokens; None: full attention"""

    @property
    def layers(self) -> int:
        return len(self.windows)
