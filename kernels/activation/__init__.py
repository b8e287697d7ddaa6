"""The gated activation of the feed-forward layer."""

import torch

from . import cpu


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """SiLU of the first half of gate_up [tokens, 2 * intermediate], times the second half.

    Returns [tokens, intermediate]. SiLU is float32 inside and rounded before the product, as PyTorch does it.
    """
    if gate_up.is_cuda:
        from . import cuda

        return cuda.silu_and_mul(gate_up)
    return cpu.silu_and_mul(gate_up)
