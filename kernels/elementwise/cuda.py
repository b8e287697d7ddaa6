"""Normalisation on CUDA, one program for each row, and activation, in tiles."""

import torch
import triton
import triton.language as tl

from ..common.dependent_launch_cuda import launch_early, wait_for_previous

BLOCK = 1024
"""elements of a tile"""


@triton.jit
def tanh(x):
    """Its absolute error is about 1e-7."""
    return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))


@triton.jit
def _normalise(value, factor, size, eps, ROUNDS: tl.constexpr, stored: tl.constexpr):
    """value × factor ÷ the root mean square of value, rounded to `stored` between the two if ROUNDS."""
    normal = value * tl.rsqrt(tl.sum(value * value, axis=0) / size + eps)
    if ROUNDS:
        normal = normal.to(stored).to(tl.float32)
    return (normal * factor).to(stored)


@triton.jit
def rms_norm_kernel(
    x, residual, weight, own_weight, out, size, multiplier, eps,
    ADD: tl.constexpr, NORMAL: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """NORMAL: whether x is normalised before it is added, by own_weight"""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    stored: tl.constexpr = out.dtype.element_ty
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if NORMAL:
        own_factor = tl.load(own_weight + column, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(DEPENDENT)
    value = tl.load(x + row * size + column, mask=inside, other=0.0)
    wide = value.to(tl.float32)
    if ADD:
        if NORMAL:
            wide = _normalise(wide, own_factor, size, eps, ROUNDS, stored).to(tl.float32)
        wide = (wide * multiplier).to(stored).to(tl.float32)
        wide += tl.load(residual + row * size + column, mask=inside, other=0.0).to(tl.float32)
        value = wide.to(stored)
        tl.store(residual + row * size + column, value, mask=inside)
        wide = value.to(tl.float32)
    tl.store(out + row * size + column, _normalise(wide, factor, size, eps, ROUNDS, stored), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    _launch(x, None, weight, out, eps, 1.0, None)
    return out


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    multiplier: float = 1.0,
    own_weight: torch.Tensor | None = None,
) -> torch.Tensor:
    out = torch.empty_like(residual)
    _launch(x, residual, weight, out, eps, multiplier, own_weight)
    return out


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    out: torch.Tensor,
    eps: float,
    multiplier: float,
    own_weight: torch.Tensor | None,
) -> None:
    assert x.is_contiguous() and out.is_contiguous() and weight.is_contiguous()
    assert residual is None or residual.is_contiguous()
    rows, size = x.shape
    block = triton.next_power_of_2(size)
    warps = max(1, min(16, block // 512))
    rms_norm_kernel[(rows,)](
        x,
        out if residual is None else residual,
        weight,
        weight if own_weight is None else own_weight,
        out,
        size,
        multiplier,
        eps,
        ADD=residual is not None,
        NORMAL=own_weight is not None,
        ROUNDS=weight.dtype == x.dtype,
        BLOCK=block,
        num_warps=warps,
        **launch_early(x.device),
    )


@triton.jit
def activate_and_mul_kernel(
    gate_up, out, stride, width, GELU: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):
    wait_for_previous(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + token * stride + column, mask=inside, other=0.0)
    up = tl.load(gate_up + token * stride + width + column, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    inner = wide
    if GELU:  # x (1 + tanh(u)) / 2 = x / (1 + exp(-2u))
        inner = 1.5957691216057308 * wide * (1.0 + 0.044715 * wide * wide)
    activated = (wide / (1.0 + tl.exp(-inner))).to(out.dtype.element_ty).to(tl.float32)
    product = (activated * up.to(tl.float32)).to(out.dtype.element_ty)
    tl.store(out + token * width + column, product, mask=inside)


def activate_and_mul(gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
    assert gate_up.stride(1) == 1
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    grid = (tokens, triton.cdiv(width, BLOCK))
    early = launch_early(gate_up.device)
    activate_and_mul_kernel[grid](gate_up, out, gate_up.stride(0), width, GELU=gelu, BLOCK=BLOCK, **early)
    return out


@triton.jit
def scale_and_cap_kernel(x, out, size, factor, cap, CAPPED: tl.constexpr, BLOCK: tl.constexpr):
    """A factor was divided by the cap."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32) * factor
    if CAPPED:
        value = cap * tanh(value)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=at < size)


def scale_and_cap(x: torch.Tensor, factor: float, softcap: float | None, dtype: torch.dtype) -> torch.Tensor:
    assert x.is_contiguous()
    out = torch.empty_like(x, dtype=dtype)
    cap = softcap or 1.0
    scale_and_cap_kernel[(triton.cdiv(x.numel(), BLOCK),)](
        x, out, x.numel(), factor / cap, cap, CAPPED=softcap is not None, BLOCK=BLOCK
    )
    return out
