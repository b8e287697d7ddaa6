# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Root-mean-square normalisation on CPUs, in one pass over memory."""

from functools import cache

import numpy as np
import torch

from ..numba_tools import compiled, fetch_add, float_bits, float_of, load, pointer, rounded, shifted, store
from ..threads import PIECE, Callback, thread_count


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `norm.rms_norm`."""
    rows = x if x.dim() == 3 else x.reshape(1, -1, x.shape[-1])
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _run(rows, rows, weight, eps, out, add=False)
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `norm.add_rms_norm`."""
    out = torch.empty_like(residual)
    _run(x[None], residual[None], weight, eps, out, add=True)
    return out


def _run(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, add: bool
) -> None:
    assert x.dtype == weight.dtype and x.stride(-1) == residual.stride(-1) == weight.stride(-1) == 1
    outer, inner, size = x.shape
    arguments = (
        outer * inner,
        inner,
        size,
        x.data_ptr(),
        x.stride(0),
        x.stride(1),
        residual.data_ptr(),
        residual.stride(1),
        weight.data_ptr(),
        out.data_ptr(),
        int(add),
        float_bits(eps),
    )
    callback(x.dtype).run(arguments, thread_count(x.numel()))


@compiled
def _norm(arguments, kind):
    """Arguments as in `_run`, after the counter of rows."""
    rows, inner, size, add = arguments[1], arguments[2], arguments[3], arguments[11]
    weight = pointer(arguments[9], kind)
    eps = float_of(arguments[12])
    step = max(1, PIECE // size)
    while True:
        begin = fetch_add(arguments, step)
        if begin >= rows:
            break
        for row in range(begin, min(rows, begin + step)):
            x = shifted(pointer(arguments[4], kind), row // inner * arguments[5] + row % inner * arguments[6])
            out = shifted(pointer(arguments[10], kind), row * size)
            if add:
                residual = shifted(pointer(arguments[7], kind), row * arguments[8])
                for i in range(size):
                    store(residual, i, load(residual, i) + load(x, i))
                x = residual
            squares = np.float32(0)
            for i in range(size):
                value = load(x, i)
                squares += value * value
            scale = np.float32(1) / np.sqrt(squares / np.float32(size) + eps)
            for i in range(size):
                store(out, i, rounded(load(x, i) * scale, kind) * load(weight, i))


def _bfloat16(arguments):
    _norm(arguments, np.uint16(0))


def _float16(arguments):
    _norm(arguments, np.int16(0))


def _float32(arguments):
    _norm(arguments, np.float32(0))


_KERNELS = {torch.bfloat16: _bfloat16, torch.float16: _float16, torch.float32: _float32}


@cache
def callback(dtype: torch.dtype) -> Callback:
    return Callback(_KERNELS[dtype])
