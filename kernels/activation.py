"""The gated activation of the feed-forward layer."""

import torch

from . import reference


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """SiLU of the first half of gate_up [tokens, 2 * intermediate], times the second half.

    Returns [tokens, intermediate]. SiLU is float32 inside and rounded before the product, as PyTorch does it.
    """
    return reference.silu_and_mul(gate_up)
