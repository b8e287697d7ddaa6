"""Copies of matrices, of their rows and of their columns.

Unlike PyTorch's, a program can contain those on a CPU.
"""

from collections.abc import Sequence

import numpy as np
import torch

from .jit import compiled_fast
from .numba_tools import KIND, fetch_add, load, pointer, shift
from .threads import PIECE, ParallelKernel, thread_count


def take_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """x[rows] → [m, width]. x: [n, width], its rows contiguous; rows: int32 or int64 [m], 0 to n - 1,
    unchecked."""
    if x.is_cuda:
        return x[rows]
    assert x.stride(1) == 1 and rows.dtype in (torch.int32, torch.int64) and rows.is_contiguous()
    out = torch.empty(len(rows), x.shape[1], dtype=x.dtype)
    size = x.element_size()
    arguments = (
        len(rows),
        x.shape[1] * size,
        x.data_ptr(),
        x.stride(0) * size,
        rows.data_ptr(),
        rows.element_size(),
        out.data_ptr(),
    )
    copy_rows.run(arguments, thread_count(out.numel()))
    return out


def take_columns(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """As `x.index_select(1, order)`, on a CPU.

    x: [rows, columns], elements of 2 or 4 bytes; order: int64 [n], contiguous, each within the columns
    """
    x = x.contiguous()
    result = torch.empty(len(x), len(order), dtype=x.dtype)
    arguments = (*result.shape, x.shape[1], x.data_ptr(), order.data_ptr(), result.data_ptr())
    COPIES_OF_COLUMNS[x.dtype.itemsize].run(arguments, thread_count(result.numel()))
    return result


def join_columns(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """As `torch.cat` along dimension 1. parts: [rows, width of the part], contiguous"""
    if parts[0].is_cuda:
        return torch.cat(list(parts), dim=1)
    rows, dtype = len(parts[0]), parts[0].dtype
    row_bytes = sum(part.shape[1] for part in parts) * dtype.itemsize
    joined = torch.empty(rows, row_bytes // dtype.itemsize, dtype=dtype)
    target = joined.data_ptr()
    for part in parts:
        assert part.is_contiguous()
        width = part.shape[1] * dtype.itemsize
        copy_part.run((rows, width, part.data_ptr(), target, row_bytes), thread_count(part.numel()))
        target += width
    return joined


def to_float32(x: torch.Tensor) -> torch.Tensor:
    """x as float32: a copy if it has half precision."""
    if x.is_cuda or x.dtype == torch.float32:
        return x.float()
    x = x.contiguous()
    wide = torch.empty(x.shape, dtype=torch.float32)
    arguments = (x.numel(), x.data_ptr(), wide.data_ptr())
    WIDENINGS[x.dtype].run(arguments, thread_count(x.numel()))
    return wide


@compiled_fast
def number_at(address, size, index):
    """Element `index` of an array of int32 (size 4) or int64 (size 8)."""
    if size == 8:
        return pointer(address, np.int64(0))[index]
    return np.int64(pointer(address, np.int32(0))[index])


@ParallelKernel
def copy_rows(arguments):
    """Arguments: the counter of rows, their number and bytes, x, the bytes from one of its rows to the next,
    the rows' numbers, the bytes of a number, and where they are copied to."""
    width = arguments[2]
    source, target = pointer(arguments[3], np.uint8(0)), pointer(arguments[7], np.uint8(0))
    while True:
        row = fetch_add(arguments, 1)
        if row >= arguments[1]:
            break
        taken = number_at(arguments[5], arguments[6], row)
        here, to = shift(source, taken * arguments[4]), shift(target, row * width)
        for at in range(width):
            to[at] = here[at]


@compiled_fast
def _copy_columns(arguments, kind):
    """Arguments: the counter of rows; rows, columns of the result and of x, and the addresses of x, the order
    and the result."""
    rows, columns = arguments[1], arguments[2]
    order = pointer(arguments[5], np.int64(0))
    while True:
        row = fetch_add(arguments, 1)
        if row >= rows:
            break
        source = shift(pointer(arguments[4], kind), row * arguments[3])
        target = shift(pointer(arguments[6], kind), row * columns)
        for i in range(columns):
            target[i] = source[order[i]]


COPIES_OF_COLUMNS = {
    2: ParallelKernel(_copy_columns, np.uint16(0)),
    4: ParallelKernel(_copy_columns, np.uint32(0)),
}
"""by bytes of an element"""


@ParallelKernel
def copy_part(arguments):
    """Arguments: the counter of rows; rows, bytes of a row, the addresses of the source and the target, and
    bytes between the target's rows."""
    rows, width = arguments[1], arguments[2]
    while True:
        row = fetch_add(arguments, 1)
        if row >= rows:
            break
        source = shift(pointer(arguments[3], np.int8(0)), row * width)
        target = shift(pointer(arguments[4], np.int8(0)), row * arguments[5])
        _copy_bytes(source, target, width)


@compiled_fast
def _copy_bytes(source, target, count):
    for i in range(count):
        target[i] = source[i]


@compiled_fast
def _widen(arguments, kind):
    """Arguments: the counter of pieces, the number of elements, and the addresses of the source and the
    target."""
    count = arguments[1]
    while True:
        begin = fetch_add(arguments, 1) * PIECE
        if begin >= count:
            break
        source = shift(pointer(arguments[2], kind), begin)
        target = shift(pointer(arguments[3], np.float32(0)), begin)
        for i in range(min(PIECE, count - begin)):
            target[i] = load(source, i)


WIDENINGS = {dtype: ParallelKernel(_widen, KIND[dtype]) for dtype in (torch.bfloat16, torch.float16)}
