# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Combines two attention results over different keys by log-sum-exp, on CPUs in one pass over memory."""

from functools import cache

import numpy as np
import torch

from ..common.numba_tools import compiled, exp, fetch_add, load, pointer, shifted, store
from ..common.threads import PIECE, Callback, thread_count


def blend(
    one: torch.Tensor, one_sum: torch.Tensor, other: torch.Tensor, other_sum: torch.Tensor, out: torch.Tensor
) -> None:
    """Write the attention over the keys of both results to out.

    one, other, out: [tokens, heads, head_dim]; one_sum, other_sum: float32 [tokens, heads], logarithms of the
    sums of exponentials; all contiguous.
    """
    tensors = (one, one_sum, other, other_sum, out)
    assert all(tensor.is_contiguous() for tensor in tensors)
    arguments = (one_sum.numel(), out.shape[-1], *(tensor.data_ptr() for tensor in tensors))
    callback(out.dtype).run(arguments, thread_count(out.numel()))


@compiled
def _blend(arguments, kind):
    """Arguments: the counter of rows, then those of `blend`."""
    rows, size = arguments[1], arguments[2]
    one_sum = pointer(arguments[4], np.float32(0))
    other_sum = pointer(arguments[6], np.float32(0))
    step = max(1, PIECE // size)
    while True:
        begin = fetch_add(arguments, step)
        if begin >= rows:
            break
        for row in range(begin, min(rows, begin + step)):
            one = shifted(pointer(arguments[3], kind), row * size)
            other = shifted(pointer(arguments[5], kind), row * size)
            out = shifted(pointer(arguments[7], kind), row * size)
            ratio = exp(-abs(one_sum[row] - other_sum[row]))
            smaller = ratio / (np.float32(1) + ratio)
            share = smaller if one_sum[row] > other_sum[row] else np.float32(1) - smaller
            for i in range(size):
                store(out, i, load(one, i) + (load(other, i) - load(one, i)) * share)


def _bfloat16(arguments):
    _blend(arguments, np.uint16(0))


def _float16(arguments):
    _blend(arguments, np.int16(0))


def _float32(arguments):
    _blend(arguments, np.float32(0))


_KERNELS = {torch.bfloat16: _bfloat16, torch.float16: _float16, torch.float32: _float32}


@cache
def callback(dtype: torch.dtype) -> Callback:
    return Callback(_KERNELS[dtype])
