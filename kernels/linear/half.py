"""Matrix products for float16 weights on processors that multiply only float32 (AVX2, say).

Weights are widened as they are read, or when they are loaded. The kernels also serve other dtypes.
"""

from functools import cache

import numpy as np
import torch

from ..common.jit import compiled_fast
from ..common.numba_tools import KIND, fetch_add, load, pointer, prefetch, shift, store
from ..common.threads import PIECE, ParallelKernel, thread_count
from . import onednn

FEW_ROWS = 16
"""Up to this many rows, widening weights in registers is faster than widening them in memory."""

SCRATCH = 6 << 20
"""Elements of the scratch buffer (24 MiB). The buffer is larger if a single output has more weights."""

BLOCK = 32_768
"""Weights that a thread takes at a time, approximately."""

TILE = 256
"""Weights that are multiplied with all rows of x before the next ones, while they are in the cache."""

AHEAD = 1024
"""The distance, in weights, between multiplying and prefetching."""

CACHE_LINE = 32  # weights


class HalfWidenedOnUseProduct:
    """Keeps the weights as they are stored. For few rows, each weight is widened in a register as it is read;
    for many rows, a part of the weights at a time is widened into a scratch buffer and multiplied by oneDNN.

    Refers to its weight [out, in], contiguous. Products share the buffer, so only one thread may call.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        assert weight.is_contiguous()
        self._weight = weight
        self._bias = None if bias is None else bias.float()
        self.addresses = (weight.data_ptr(), 0, 0 if self._bias is None else self._bias.data_ptr())
        """of the weight, nothing, and the bias, 0 for none"""
        _scratch(max(SCRATCH, weight.shape[1]))  # allocated now: a program would reuse its memory

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(len(x), len(self._weight), dtype=x.dtype)
        if len(x) <= FEW_ROWS:
            multiply(to_float32(x), self._weight, self._bias, y)
        else:
            self._multiply_parts(x, y)
        return y

    def prepare(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        """x in float32, and the arguments of `multiply`."""
        (weight, _, bias), wide = self.addresses, to_float32(x)
        return wide, (len(x), *self._weight.shape, wide.data_ptr(), weight, bias, y.data_ptr())

    def _multiply_parts(self, x: torch.Tensor, y: torch.Tensor) -> None:
        outputs, inputs = self._weight.shape
        padded = torch.zeros(onednn.padded_rows(len(x)), inputs)
        padded[: len(x)] = x
        scratch = _scratch(max(SCRATCH, inputs))
        step = len(scratch) // inputs
        for begin in range(0, outputs, step):
            part = self._weight[begin : begin + step]
            wide = scratch[: part.numel()].view_as(part)
            widen(part, wide)
            bias = None if self._bias is None else self._bias[begin : begin + step]
            y[:, begin : begin + step].copy_(onednn.multiply(padded, wide, bias)[: len(x)])


class HalfWidenedOnLoadProduct:
    """Holds the weights as float32, in twice the memory. Any number of rows runs the same code."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._product = onednn.OneDnnProduct(weight.float(), None if bias is None else bias.float())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x.float()).to(x.dtype)


@cache
def _scratch(elements: int) -> torch.Tensor:
    return torch.empty(elements)


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor) -> None:
    """y [rows, out] = x [rows, in] weightᵀ + bias; x and bias float32, weight and y of one float dtype."""
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


PRODUCTS = {dtype: ParallelKernel(_multiply, kind) for dtype, kind in KIND.items()}
WIDENINGS = {dtype: ParallelKernel(_widen, KIND[dtype]) for dtype in (torch.bfloat16, torch.float16)}
