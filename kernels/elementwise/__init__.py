"""Root-mean-square normalisation (Zhang & Sennrich 2019), gated activations of feed-forward layers, and
scaling."""

from typing import NamedTuple

import torch

from . import cpu


class HeadNorms(NamedTuple):
    """RMS norms over each head, with a weight float32 [head_dim] for queries and one for keys, in some models
    (Qwen3)."""

    q: torch.Tensor
    k: torch.Tensor
    eps: float


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise each row of x [rows, size] and scale it by weight [size]; both contiguous.

    The mean is float32. If the weight has x's dtype, the normalised value is rounded to it before it is
    multiplied by the weight, as in transformers' LlamaRMSNorm. A float32 weight multiplies it before it is
    rounded, as in GemmaRMSNorm.
    """
    if x.is_cuda:
        from . import cuda

        return cuda.rms_norm(x, weight, eps)
    return cpu.rms_norm(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    multiplier: float = 1.0,
    own_weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add x [rows, size] × multiplier to residual in place and return `rms_norm` of the sum. The product and
    the sum are rounded to x's dtype.

    own_weight: of the same dtype as weight; `rms_norm(x, own_weight, eps)` takes the place of x, whose
    elements may be overwritten.
    """
    if x.is_cuda:
        from . import cuda

        return cuda.add_rms_norm(x, residual, weight, eps, multiplier, own_weight)
    return cpu.add_rms_norm(x, residual, weight, eps, multiplier, own_weight)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """SiLU of the first half of gate_up [tokens, 2 * intermediate], times the second half.

    Returns [tokens, intermediate]. SiLU is float32 inside and rounded before the product, as PyTorch does it.
    """
    if gate_up.is_cuda:
        from . import cuda

        return cuda.activate_and_mul(gate_up, gelu=False)
    return cpu.activate_and_mul(gate_up, gelu=False)


def gelu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `silu_and_mul`, with the approximation of GELU by tanh (Hendrycks & Gimpel 2016)."""
    if gate_up.is_cuda:
        from . import cuda

        return cuda.activate_and_mul(gate_up, gelu=True)
    return cpu.activate_and_mul(gate_up, gelu=True)


def scale_and_cap(
    x: torch.Tensor, factor: float, softcap: float | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """x × factor, or softcap × tanh(x × factor / softcap).

    x: contiguous. dtype: of the result, float32 or (by default) that of x. Values in between are float32.
    """
    if x.is_cuda:
        from . import cuda

        return cuda.scale_and_cap(x, factor, softcap, dtype or x.dtype)
    return cpu.scale_and_cap(x, factor, softcap, dtype or x.dtype)
