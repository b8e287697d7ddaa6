"""What a model's layers keep: attention layers for each token, recurrent layers for each sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ....kernels.attention import Reach


class StateTensor(NamedTuple):
    """A tensor of a recurrent layer's state."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    """None: the dtype of activations"""


class PageGroup(NamedTuple):
    """Layers whose attention reaches equally far. They have pages and page tables of their own."""

    layers: tuple[int, ...]
    """numbers of the layers"""
    reach: int | None
    """number of latest tokens that attention reads; None: all"""
    in_chunks: bool = False
    """whether attention reads the tokens since the last multiple of `reach` in place of the latest ones"""


ALL_LAYERS = (PageGroup((), None),)
"""the only group of a model whose layers all see all tokens; it does not list them"""


def number_groups(groups: Sequence[PageGroup]) -> tuple[int, ...]:
    """The number of each layer's group; empty if one group has all layers."""
    if len(groups) == 1:
        return ()
    of_layer = {layer: number for number, group in enumerate(groups) for layer in group.layers}
    return tuple(of_layer[layer] for layer in sorted(of_layer))


@dataclass(frozen=True)
class CacheSpec:
    """The heads of the attention layers, and each layer's reach."""

    heads: int
    """query heads; here and below the most of all layers"""
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    """each layer's sliding window in tokens; None: full attention"""
    chunks: tuple[int | None, ...] = ()
    """the size of each layer's chunks of attention in tokens, if some layers have chunks"""
    kv_shapes: tuple[tuple[int, int], ...] = ()
    """each layer's KV heads and their size, if layers differ and their pages do too"""
    states: tuple[StateTensor, ...] = ()
    """the state of all recurrent layers; empty: there are none"""

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def reaches(self) -> tuple[Reach, ...]:
        return tuple(map(Reach, self.windows, self.chunks or (None,) * self.layers))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept after a step, as in an encoder, which reads an input as a whole."""
        return not self.windows and not self.states

    def kv_shape(self, layer: int) -> tuple[int, int]:
        """The KV heads of a layer's pages, and their size."""
        return self.kv_shapes[layer] if self.kv_shapes else (self.kv_heads, self.head_dim)

    def pad(self) -> CacheSpec:
        """The same layers, all with pages of the largest layer's shape."""
        return replace(self, kv_shapes=())

    def group_layers(self, context: int) -> list[PageGroup]:
        """The groups of layers: first those that see all of `context` tokens, even if there are none."""
        reaches = [
            self._find_reach(window, chunk, context)
            for window, chunk in zip(self.windows, self.chunks or [None] * self.layers, strict=True)
        ]
        windowed = sorted({reach for reach in reaches if reach is not None})
        return [
            PageGroup(
                tuple(number for number, each in enumerate(reaches) if each == reach),
                *(reach or (None, False)),
            )
            for reach in (None, *windowed)
        ]

    def _find_reach(self, window: int | None, chunk: int | None, context: int) -> tuple[int, bool] | None:
        """The reach of a layer, and whether it is that of chunks; None if it sees all tokens."""
        if chunk is not None and chunk < context:
            return chunk, True
        return None if window is None or window >= context else (window, False)

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of a sequence's state. dtype: of activations"""
        return sum(math.prod(state.shape) * (state.dtype or dtype).itemsize for state in self.states)
