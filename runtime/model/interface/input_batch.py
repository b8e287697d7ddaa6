"""The inputs of a forward pass on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ....kernels.attention import AttentionBatch


class RowStates(NamedTuple):
    """The states of recurrent layers before a step; the forward pass leaves there the ones after it."""

    tensors: Sequence[torch.Tensor]
    """each tensor of a state in all places, [places, …]"""
    places: NDArray[np.int64]
    """[rows]: the place of each row's state. A row whose first token has position 0 has none yet"""


@dataclass(frozen=True)
class GroupInputs:
    """What the layers of one page group read."""

    places: torch.Tensor
    """int64 [tokens]: where each token's keys and values are written, page × page_size + offset"""
    attention: AttentionBatch


@dataclass(frozen=True)
class InputBatch:
    """The inputs of a step on the device."""

    tokens: torch.Tensor
    """int32 [tokens]: token ids"""
    positions: torch.Tensor
    """int64 [tokens]: the position of each token in its sequence"""
    groups: tuple[GroupInputs, ...]
    """one for each page group; see `CacheSpec.group_layers`"""
    outputs: torch.Tensor | None
    """int64 [output tokens]: the tokens whose hidden states are returned; None: all, in order.
    First the last tokens of the rows that sample, then the tokens of each row that have targets."""
    layer_groups: Sequence[int] = ()
    """the group of each layer, if there are several groups"""
    states: RowStates | None = None
    """None: the model has no recurrent layers"""
    texts: torch.Tensor | None = None
    """int64 [tokens]: 0 for tokens of a pair's first text, 1 for those of its second one; None: no row is a
    pair"""
    adapters: torch.Tensor | None = None
    """the tokens by their adapters (see `kernels.adapters.group_rows`); None: all use the base model"""
    output_adapters: torch.Tensor | None = None
    """the same for `outputs`, if they are not all tokens"""

    @property
    def size(self) -> int:
        return len(self.tokens)

    def of_layer(self, number: int) -> GroupInputs:
        return self.groups[self.layer_groups[number] if self.layer_groups else 0]
