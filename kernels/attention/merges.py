"""Merges the partial results of items whose keys were split (see `plan`)."""

import numpy as np

from ..common.jit import compiled_fast
from ..common.numba_tools import KIND, exp, fetch_add, fma, pointer, shift, store
from ..common.threads import ParallelKernel
from .items import HEAD_DIM, KV_HEADS, MERGE_COUNT, MERGES, OUT, PARTIAL_OUT, PARTIAL_SUM, REPEAT


@compiled_fast
def _merge_partials(arguments, kind):
    """Combine the partial results of each query token, weighted by their sums of exponentials.

    They are added one after another, so that partial results of keys that the token does not see change
    nothing.
    """
    head_dim = arguments[HEAD_DIM]
    heads = arguments[KV_HEADS] * arguments[REPEAT]
    sums = pointer(arguments[PARTIAL_SUM], np.float32(0))
    scratch = np.empty(head_dim, np.float32)
    total = pointer(scratch.ctypes.data, np.float32(0))
    while True:
        work = fetch_add(arguments, 1)
        if work >= arguments[MERGE_COUNT] * heads:
            break
        head = work % heads
        merge = shift(pointer(arguments[MERGES], np.int64(0)), work // heads * 3)
        first, count = merge[1], merge[2]
        largest = np.float32(-np.inf)
        for part in range(count):
            largest = max(largest, sums[(first + part) * heads + head])
        scratch[:] = np.float32(0)
        summed = np.float32(0)
        for part in range(count):
            weight = exp(sums[(first + part) * heads + head] - largest)
            summed = fma(weight, np.float32(1), summed)
            row = (first + part) * heads + head
            partial = shift(pointer(arguments[PARTIAL_OUT], np.float32(0)), row * head_dim)
            for d in range(head_dim):
                total[d] = fma(weight, partial[d], total[d])
        out = shift(pointer(arguments[OUT], kind), (merge[0] * heads + head) * head_dim)
        for d in range(head_dim):
            store(out, d, total[d] / summed)


KERNELS = {dtype: ParallelKernel(_merge_partials, kind) for dtype, kind in KIND.items()}
"""by dtype of the results"""
