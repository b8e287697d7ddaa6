"""The logits of a router on a CPU: weights of any float dtype are widened in registers as they are read."""

import numpy as np
import torch

from ..common.jit import compiled_fast
from ..common.numba_tools import KIND, fetch_add, load, pointer, prefetch, shift, store
from ..common.rows import to_float32
from ..common.threads import ParallelKernel, thread_count

BLOCK = 32_768
"""Weights that a thread takes at a time, approximately."""

TILE = 256
"""Weights that are multiplied with all rows of x before the next ones, while they are in the cache."""

AHEAD = 1024
"""The distance, in weights, between multiplying and prefetching."""

CACHE_LINE = 32  # weights


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Returns x weightᵀ + bias. x: [rows, in]; weight: [experts, in], contiguous, of x's dtype; bias: float32
    [experts]"""
    experts, inputs = weight.shape
    wide, y = to_float32(x), torch.empty(len(x), experts, dtype=x.dtype)
    addresses = (wide.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr())
    PRODUCTS[weight.dtype].run((len(x), experts, inputs, *addresses), thread_count(weight.numel()))
    return y


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
    """Arguments: the counter of blocks of outputs, then those of `multiply`."""
    outputs, inputs = arguments[2], arguments[3]
    sums = np.empty(arguments[1], np.float32)
    step = max(1, BLOCK // inputs)
    while True:
        begin = fetch_add(arguments, 1) * step
        if begin >= outputs:
            break
        multiply_outputs(arguments, begin, min(outputs, begin + step), sums, kind)


@compiled_fast
def multiply_outputs(arguments, begin, end, sums, kind):
    """Computes the outputs `begin` to `end` of all rows. sums: float32 [rows]

    Reads one weight row at a time, in order: reading several at once halves the bandwidth.
    """
    rows, outputs, inputs = arguments[1], arguments[2], arguments[3]
    x = pointer(arguments[4], np.float32(0))
    bias = pointer(arguments[6], np.float32(0))
    y = pointer(arguments[7], kind)
    out = pointer(np.int64(sums.ctypes.data), np.float32(0))
    tile = inputs if rows == 1 else TILE
    for output in range(begin, end):
        weight = shift(pointer(arguments[5], kind), output * inputs)
        sums[:rows] = bias[output] if arguments[6] != 0 else np.float32(0)
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


PRODUCTS = {dtype: ParallelKernel(_multiply, kind) for dtype, kind in KIND.items()}
