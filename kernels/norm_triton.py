# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Root-mean-square normalisation on CUDA: one program for each row."""

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x, residual, weight, out, x_stride, size, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    if ADD:
        value = value + tl.load(residual + row * size + column, mask=inside, other=0.0)
        tl.store(residual + row * size + column, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide) / size + eps)
    normal = (wide * scale).to(out.dtype.element_ty)
    tl.store(out + row * size + column, normal * tl.load(weight + column, mask=inside), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    size = x.shape[-1]
    rows = x.reshape(-1, size)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(rows, None, weight, out, eps)
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(residual)
    _launch(x, residual, weight, out, eps)
    return out


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, out: torch.Tensor, eps: float
) -> None:
    rows, size = x.shape
    block = triton.next_power_of_2(size)
    rms_norm_kernel[(rows,)](
        x,
        out if residual is None else residual,
        weight,
        out,
        x.stride(0),
        size,
        eps,
        ADD=residual is not None,
        BLOCK=block,
        num_warps=max(1, min(16, block // 512)),
    )
