"""Root-mean-square normalisation (Zhang & Sennrich 2019), and the gated activation of feed-forward layers."""

from typing import NamedTuple

import torch

from . import cpu


class HeadNorms(NamedTuple):
    """RMS norms over each head, with a weight [head_dim] for queries and one for keys, in some models
    (Qwen3)."""

    q: torch.Tensor
    k: torch.Tensor
    eps: float


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise each row of x [rows, size] and scale it by weight [size]; both contiguous.

    The mean is float32; the normalised value is rounded to x's dtype before it is multiplied by the weight,
    as in transformers' LlamaRMSNorm.
    """
    if x.is_cuda:
        from . import cuda

        return cuda.rms_norm(x, weight, eps)
    return cpu.rms_norm(x, weight, eps)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Add x [rows, size] to residual in place and return `rms_norm` of the sum (rounded to its dtype)."""
    if x.is_cuda:
        from . import cuda

        return cuda.add_rms_norm(x, residual, weight, eps)
    return cpu.add_rms_norm(x, residual, weight, eps)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """SiLU of the first half of gate_up [tokens, 2 * intermediate], times the second half.

    Returns [tokens, intermediate]. SiLU is float32 inside and rounded before the product, as PyTorch does it.
    """
    if gate_up.is_cuda:
        from . import cuda

        return cuda.silu_and_mul(gate_up)
    return cpu.silu_and_mul(gate_up)
