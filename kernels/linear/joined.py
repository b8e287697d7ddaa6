"""Several products of one input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..common.jit import compiled
from ..common.numba_tools import fetch_add, pointer, shifted
from ..common.threads import ParallelKernel, thread_count
from .invariant import Product


class JoinedProduct:
    """The results of several products, concatenated along the outputs."""

    def __init__(self, products: Sequence[Product]) -> None:
        self.products = products

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        parts = [product(x) for product in self.products]
        return torch.cat(parts, dim=-1) if x.is_cuda else _joined(parts)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """As `torch.cat` along the outputs; unlike that, it can be recorded in a program."""
    rows, dtype = len(parts[0]), parts[0].dtype
    outputs = sum(part.shape[1] for part in parts)
    joined = torch.empty(rows, outputs, dtype=dtype)
    begin = 0
    for part in parts:
        assert part.is_contiguous()
        width = part.shape[1] * dtype.itemsize
        target = joined.data_ptr() + begin * dtype.itemsize
        arguments = (rows, width, part.data_ptr(), target, outputs * dtype.itemsize)
        copy_part.run(arguments, thread_count(part.numel()))
        begin += part.shape[1]
    return joined


@ParallelKernel
def copy_part(arguments):
    """Arguments: the counter of rows; rows, bytes of a row, the addresses of the source and the target, and
    bytes between the target's rows."""
    rows, width = arguments[1], arguments[2]
    while True:
        row = fetch_add(arguments, 1)
        if row >= rows:
            break
        source = shifted(pointer(arguments[3], np.int8(0)), row * width)
        target = shifted(pointer(arguments[4], np.int8(0)), row * arguments[5])
        _copy_bytes(source, target, width)


@compiled
def _copy_bytes(source, target, count):
    for i in range(count):
        target[i] = source[i]
