"""What a model's attention layers keep for each token."""

from __future__ import annotations

from dataclasses import dataclass

from ....kernels.attention import Reach


@dataclass(frozen=True)
class CacheSpec:
    """The heads of the attention layers, which all have pages of the same shape, and each layer's reach."""

    heads: int
    """query heads"""
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    """each layer's sliding window in tokens; None: full attention"""
    chunks: tuple[int | None, ...] | None = None
    """the tokens of each layer's chunks (see `Reach`); None: no layer has chunks"""

    @property
    def reaches(self) -> tuple[Reach, ...]:
        return tuple(map(Reach, self.windows, self.chunks or (None,) * self.layers))

    @property
    def layers(self) -> int:
        return len(self.windows)
