"""Half-precision weights, widened as they are read: products with few rows, and copies to float32."""

import numpy as np
import torch

from ..common.jit import compiled_fast
from ..common.numba_tools import KIND, fetch_add, load, pointer, prefetch, shift, store
from ..common.threads import PIECE, ParallelKernel, thread_count

BLOCK = 32_768
"""Weights that a thread takes at a time, approximately."""

TILE = 256
"""Weights that are multiplied with all rows of x before the next ones, while they are in the cache."""

AHEAD = 1024
"""The distance, in weights, between multiplying and prefetching."""

CACHE_LINE = 32  # weights

HALVES = (torch.bfloat16, torch.float16)


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor) -> None:
    """y [rows, out] = x [rows, in] weightᵀ + bias; x and bias float32, weight and y of one half dtype."""
    outputs, inputs = weight.shape
    addresses = (x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr())
    PRODUCTS[weight.dtype].run((len(x), outputs, inputs, *addresses), thread_count(weight.numel()))


def widen(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy a half-precision tensor to a float32 one; both contiguous."""
    arguments = (source.numel(), source.data_ptr(), target.data_ptr())
    WIDENINGS[source.dtype].run(arguments, thread_count(source.numel()))


def to_float32(x: torch.Tensor) -> torch.Tensor:
    """x as float32: a copy if it has half precision."""
    if x.dtype == torch.float32:
        return x
    wide = torch.empty(x.shape, dtype=torch.float32)
    widen(x.contiguous(), wide)
    return wide


@compiled_fast
def _add_dot_one(weight, x, size, out):
    a = np.float32(0)
    for i in range(size):
        a += load(weight, i) * x[i]
    out[0] += a


@compiled_fast
def _add_dot_two(weight, x, size, stride, out):
    y = shift(x, stride)
    a = b = np.float32(0)
    for i in range(size):
        w = load(weight, i)
        a += w * x[i]
        b += w * y[i]
    out[0] += a
    out[1] += b


@compiled_fast
def _add_dot_four(weight, x0, size, stride, out):
    x1, x2, x3 = shift(x0, stride), shift(x0, 2 * stride), shift(x0, 3 * stride)
    a = b = c = d = np.float32(0)
    for i in range(size):
        w = load(weight, i)
        a += w * x0[i]
        b += w * x1[i]
        c += w * x2[i]
        d += w * x3[i]
    out[0] += a
    out[1] += b
    out[2] += c
    out[3] += d


@compiled_fast
def _multiply(arguments, kind):
    """Arguments: the counter of blocks of outputs, then those of `multiply`.

    Reads one weight row at a time, in order: reading several at once halves the bandwidth.
    """
    rows, outputs, inputs = arguments[1], arguments[2], arguments[3]
    x = pointer(arguments[4], np.float32(0))
    bias = pointer(arguments[6], np.float32(0))
    y = pointer(arguments[7], kind)
    sums = np.empty(rows, np.float32)
    out = pointer(np.int64(sums.ctypes.data), np.float32(0))
    step = max(1, BLOCK // inputs)
    tile = inputs if rows == 1 else TILE
    while True:
        begin = fetch_add(arguments, 1) * step
        if begin >= outputs:
            break
        for output in range(begin, min(outputs, begin + step)):
            weight = shift(pointer(arguments[5], kind), output * inputs)
            sums[:] = bias[output] if arguments[6] != 0 else np.float32(0)
            for start in range(0, inputs, tile):
                _add_tile(shift(weight, start), shift(x, start), min(tile, inputs - start), inputs, rows, out)
            for row in range(rows):
                store(y, row * outputs + output, out[row])


@compiled_fast
def _add_tile(weight, x, size, stride, rows, out):
    """Adds the products of some weights of one output with all rows of x."""
    if rows == 1:
        return _add_dot_one(weight, x, size, out)
    for i in range(0, size, CACHE_LINE):
        prefetch(weight, i + AHEAD)
    row = 0
    while row + 4 <= rows:
        _add_dot_four(weight, shift(x, row * stride), size, stride, shift(out, row))
        row += 4
    if row + 2 <= rows:
        _add_dot_two(weight, shift(x, row * stride), size, stride, shift(out, row))
        row += 2
    if row < rows:
        _add_dot_one(weight, shift(x, row * stride), size, shift(out, row))


@compiled_fast
def _widen(arguments, kind):
    """Arguments: the counter of pieces, then those of `widen`."""
    count = arguments[1]
    while True:
        begin = fetch_add(arguments, 1) * PIECE
        if begin >= count:
            break
        source = shift(pointer(arguments[2], kind), begin)
        target = shift(pointer(arguments[3], np.float32(0)), begin)
        for i in range(min(PIECE, count - begin)):
            target[i] = load(source, i)


PRODUCTS = {dtype: ParallelKernel(_multiply, KIND[dtype]) for dtype in HALVES}
WIDENINGS = {dtype: ParallelKernel(_widen, KIND[dtype]) for dtype in HALVES}
