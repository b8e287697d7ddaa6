"""The columns of a matrix in another order."""

from __future__ import annotations

import numpy as np
import torch

from ..common.jit import compiled
from ..common.numba_tools import fetch_add, pointer, shifted
from ..common.threads import ParallelKernel, thread_count


def gathered(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """As `x.index_select(1, order)`; unlike that, it can be recorded in a program.

    x: [rows, columns], elements of 2 or 4 bytes; order: int64 [n], contiguous, each within the columns
    """
    x = x.contiguous()
    result = torch.empty(len(x), len(order), dtype=x.dtype)
    arguments = (*result.shape, x.shape[1], x.data_ptr(), order.data_ptr(), result.data_ptr())
    KERNELS[x.dtype.itemsize].run(arguments, thread_count(result.numel()))
    return result


@compiled
def _gather(arguments, kind):
    """Arguments: the counter of rows; rows, columns of the result and of x, and the addresses of x, the order
    and the result."""
    rows, columns = arguments[1], arguments[2]
    order = pointer(arguments[5], np.int64(0))
    while True:
        row = fetch_add(arguments, 1)
        if row >= rows:
            break
        source = shifted(pointer(arguments[4], kind), row * arguments[3])
        target = shifted(pointer(arguments[6], kind), row * columns)
        for i in range(columns):
            target[i] = source[order[i]]


@ParallelKernel
def _gather_2_bytes(arguments):
    _gather(arguments, np.uint16(0))


@ParallelKernel
def _gather_4_bytes(arguments):
    _gather(arguments, np.uint32(0))


KERNELS = {2: _gather_2_bytes, 4: _gather_4_bytes}
"""by bytes of an element"""
