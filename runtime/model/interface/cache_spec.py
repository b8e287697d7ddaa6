"""What a model's layers keep: attention layers for each token, recurrent layers for each sequence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ....kernels.attention import Reach


class StateTensor(NamedTuple):
    """A tensor of a recurrent layer's state."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """None: the dtype of activations"""


@dataclass(frozen=True)
class CacheSpec:
    """The heads of the attention layers, which all have pages of the same shape, and each layer's reach."""

    heads: int
    """query heads"""
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    """each layer's sliding window in tokens; None: full attention"""
    states: tuple[StateTensor, ...] = ()
    """the state of all recurrent layers; empty: there are none"""
    chunks: tuple[int | None, ...] | None = None
    """the tokens of each layer's chunks (see `Reach`); None: no layer has chunks"""

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def reaches(self) -> tuple[Reach, ...]:
        return tuple(map(Reach, self.windows, self.chunks or (None,) * self.layers))

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of a sequence's state. dtype: of activations"""
        return sum(math.prod(state.shape) * (state.dtype or dtype).itemsize for state in self.states)
