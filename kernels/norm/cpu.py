"""Root-mean-square normalisation on CPUs, in one pass over memory."""

import numpy as np
import torch

from ..common.lanes import (
    fused,
    load_wide,
    multiplied,
    plus,
    repeated,
    rounded_lanes,
    store_narrow,
    sum_of,
    times,
)
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
from ..common.squares import sum_of_squares
from ..common.threads import PIECE, ParallelKernel, thread_count
from ..common.vectors import LANES


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
    KERNELS[x.dtype].run(arguments, thread_count(x.numel()))


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
            if add:
                residual = shifted(pointer(arguments[4], kind), row * size)
                squares = _add(residual, x, size, kind)
                x = residual
            else:
                squares = sum_of_squares(x, size)
            scale = np.float32(1) / np.sqrt(squares / np.float32(size) + eps)
            _scale(x, scale, weight, size, kind, out)


@compiled
def _add(residual, x, size, kind):
    """Adds x to the residual. Returns the sum of the squares of the results."""
    partial_sums = repeated(np.float32(0))
    vectors_end = size - size % LANES
    for i in range(0, vectors_end, LANES):
        value = rounded_lanes(plus(load_wide(residual, i), load_wide(x, i)), kind)
        partial_sums = fused(value, value, partial_sums)
        store_narrow(residual, i, value)
    squares = sum_of(partial_sums)
    for i in range(vectors_end, size):
        value = rounded(load(residual, i) + load(x, i), kind)
        squares += value * value
        store(residual, i, value)
    return squares


@compiled
def _scale(x, scale, weight, size, kind, out):
    """out = x times `scale`, rounded, times `weight`"""
    vectors_end = size - size % LANES
    for i in range(0, vectors_end, LANES):
        value = rounded_lanes(multiplied(load_wide(x, i), scale), kind)
        store_narrow(out, i, times(value, load_wide(weight, i)))
    for i in range(vectors_end, size):
        store(out, i, rounded(load(x, i) * scale, kind) * load(weight, i))


@ParallelKernel
def _bfloat16(arguments):
    _norm(arguments, np.uint16(0))


@ParallelKernel
def _float16(arguments):
    _norm(arguments, np.int16(0))


@ParallelKernel
def _float32(arguments):
    _norm(arguments, np.float32(0))


KERNELS = {torch.bfloat16: _bfloat16, torch.float16: _float16, torch.float32: _float32}
