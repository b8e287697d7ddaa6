"""Copies of some rows of a matrix."""

import numpy as np
import torch

from .numba_tools import compiled, fetch_add, pointer, shifted
from .threads import ParallelKernel, thread_count


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


@compiled
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
        here, to = shifted(source, taken * arguments[4]), shifted(target, row * width)
        for at in range(width):
            to[at] = here[at]
