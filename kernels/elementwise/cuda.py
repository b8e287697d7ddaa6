"""Normalisation on CUDA, one program for each row, and activation, in tiles."""

import torch
import triton
import triton.language as tl

from ..common.dependent_launch_cuda import launch_early, wait_for_previous

BLOCK = 1024
"""elements of a tile"""


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, size, eps, ADD: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(DEPENDENT)
    value = tl.load(x + row * size + column, mask=inside, other=0.0)
    wide = value.to(tl.float32)
    if ADD:
        wide += tl.load(residual + row * size + column, mask=inside, other=0.0).to(tl.float32)
        value = wide.to(out.dtype.element_ty)
        tl.store(residual + row * size + column, value, mask=inside)
        wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    normal = (wide * scale).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * size + column, (normal * factor).to(out.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    _launch(x, out, weight, out, eps, add=False)
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(residual)
    _launch(x, residual, weight, out, eps, add=True)
    return out


def _launch(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float, add: bool
) -> None:
    assert x.is_contiguous() and residual.is_contiguous() and weight.is_contiguous()
    rows, size = x.shape
    block = triton.next_power_of_2(size)
    warps = max(1, min(16, block // 512))
    rms_norm_kernel[(rows,)](
        x, residual, weight, out, size, eps, ADD=add, BLOCK=block, num_warps=warps, **launch_early(x.device)
    )


@triton.jit
def silu_and_mul_kernel(gate_up, out, stride, width, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    wait_for_previous(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + token * stride + column, mask=inside, other=0.0)
    up = tl.load(gate_up + token * stride + width + column, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    activated = (wide / (1.0 + tl.exp(-wide))).to(out.dtype.element_ty).to(tl.float32)
    product = (activated * up.to(tl.float32)).to(out.dtype.element_ty)
    tl.store(out + token * width + column, product, mask=inside)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    assert gate_up.stride(1) == 1
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    grid = (tokens, triton.cdiv(width, BLOCK))
    early = launch_early(gate_up.device)
    silu_and_mul_kernel[grid](gate_up, out, gate_up.stride(0), width, BLOCK=BLOCK, **early)
    return out
