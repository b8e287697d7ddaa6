"""The inputs of a forward pass on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ....kernels.attention import AttentionBatch


@dataclass(frozen=True)
class InputBatch:
    """The inputs of a step on the device."""

    tokens: torch.Tensor
    """int32 [tokens]: token ids"""
    positions: torch.Tensor
    """int64 [tokens]: the position of each token in its sequence"""
    places: torch.Tensor
    """int64 [tokens]: where each token's keys and values are written, page × page_size + offset"""
    attention: AttentionBatch
    outputs: torch.Tensor | None
    """int64 [output tokens]: the tokens whose hidden states are returned; None: all, in order.
    First the last tokens of the rows that sample, then the tokens of each row that have targets."""
    adapters: torch.Tensor | None = None
    """the tokens by their adapters (see `kernels.adapters.group_rows`); None: all use the base model"""
    output_adapters: torch.Tensor | None = None
    """the same for `outputs`, if they are not all tokens"""

    @property
    def size(self) -> int:
        return len(self.tokens)
