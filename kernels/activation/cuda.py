"""The gated activation on CUDA."""

import torch
import triton
import triton.language as tl

from ..common.dependent_launch_cuda import launch_early, wait_for_previous

BLOCK = 1024


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
