# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Root-mean-square normalisation on CPUs, in one pass over memory."""

from functools import cache

import numpy as np
import torch

from ..common.numba_tools import (
    compiled,
    fetch_add,
    float_bits,
    float_of,
    load,
    pointer,
    rounded,
    shifted,
    store,
)
from ..common.threads import PIECE, Callback, thread_count


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `norm.rms_norm`."""
    out = torch.empty_like(x)
    _run(x, x, weight, eps, out, add=False)
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `norm.add_rms_norm`."""
    out = torch.empty_like(residual)
    _run(x, residual, weight, eps, out, add=True)
    return out


def _run(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, add: bool
) -> None:
    assert x.dtype == weight.dtype
    assert x.is_contiguous() and residual.is_contiguous() and weight.is_contiguous()
    rows, size = x.shape
    arguments = (
        rows,
        size,
        x.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        int(add),
        float_bits(eps),
    )
    callback(x.dtype).run(arguments, thread_count(x.numel()))


@compiled
def _norm(arguments, kind):
    """Arguments: the counter of rows, then those of `_run`."""
    rows, size, add = arguments[1], arguments[2], arguments[7]
    weight = pointer(arguments[5], kind)
    eps = float_of(arguments[8])
    step = max(1, PIECE // size)
    while True:
        begin = fetch_add(arguments, step)
        if begin >= rows:
            break
        for row in range(begin, min(rows, begin + step)):
            x = shifted(pointer(arguments[3], kind), row * size)
            out = shifted(pointer(arguments[6], kind), row * size)
            squares = np.float32(0)
            if add:
                residual = shifted(pointer(arguments[4], kind), row * size)
                for i in range(size):
                    value = rounded(load(residual, i) + load(x, i), kind)
                    squares += value * value
                    store(residual, i, value)
                x = residual
            else:
                for i in range(size):
                    squares += load(x, i) * load(x, i)
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
