# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Root-mean-square normalisation on CUDA: one program for each row."""

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, inner, x_outer, x_inner, size, eps, ADD: tl.constexpr, BLOCK: tl.constexpr
):
    """Row r stands at x_outer * (r // inner) + x_inner * (r % inner) of x, and at size * r of the others."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    value = tl.load(x + row // inner * x_outer + row % inner * x_inner + column, mask=inside, other=0.0)
    wide = value.to(tl.float32)
    if ADD:
        wide += tl.load(residual + row * size + column, mask=inside, other=0.0).to(tl.float32)
        value = wide.to(out.dtype.element_ty)
        tl.store(residual + row * size + column, value, mask=inside)
        wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    normal = (wide * scale).to(out.dtype.element_ty).to(tl.float32)
    scaled = normal * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + column, scaled.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `norm.rms_norm`."""
    rows = x if x.dim() == 3 else x.reshape(1, -1, x.shape[-1])
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _launch(rows, out, weight, out, eps, add=False)
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `norm.add_rms_norm`."""
    assert residual.is_contiguous()
    out = torch.empty_like(residual)
    _launch(x[None], residual, weight, out, eps, add=True)
    return out


def _launch(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float, add: bool
) -> None:
    outer, inner, size = x.shape
    block = triton.next_power_of_2(size)
    rms_norm_kernel[(outer * inner,)](
        x,
        residual,
        weight,
        out,
        inner,
        x.stride(0),
        x.stride(1),
        size,
        eps,
        ADD=add,
        BLOCK=block,
        num_warps=max(1, min(16, block // 512)),
    )
