"""The gated activation on CPUs, in one pass over memory."""

import numpy as np
import torch

from ..common.jit import compiled_fast
from ..common.lanes import load_wide, multiply_lanes, round_lanes, silu, store_narrow
from ..common.numba_tools import KIND, exp, fetch_add, load, pointer, round_to, shift, store
from ..common.threads import PIECE, ParallelKernel, thread_count
from ..common.vectors import LANES


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    assert gate_up.stride(1) == 1
    tokens, width = gate_up.shape
    out = torch.empty(tokens, width // 2, dtype=gate_up.dtype)
    arguments = (tokens, width // 2, gate_up.data_ptr(), gate_up.stride(0), out.data_ptr())
    KERNELS[gate_up.dtype].run(arguments, thread_count(gate_up.numel()))
    return out


@compiled_fast
def _silu_and_mul(arguments, kind):
    """Arguments: the counter of pieces of tokens, then those of `silu_and_mul`."""
    tokens, width = arguments[1], arguments[2]
    pieces = (width + PIECE - 1) // PIECE
    while True:
        work = fetch_add(arguments, 1)
        if work >= tokens * pieces:
            break
        token = work // pieces
        gate = shift(pointer(arguments[3], kind), token * arguments[4])
        out = shift(pointer(arguments[5], kind), token * width)
        begin = work % pieces * PIECE
        end = min(width, begin + PIECE)
        vectors_end = end - (end - begin) % LANES
        for i in range(begin, vectors_end, LANES):
            gated = round_lanes(silu(load_wide(gate, i)), kind)
            store_narrow(out, i, multiply_lanes(gated, load_wide(gate, width + i)))
        for i in range(vectors_end, end):
            x = load(gate, i)
            tail = exp(-abs(x))
            sigmoid = (np.float32(1) if x >= np.float32(0) else tail) / (np.float32(1) + tail)
            store(out, i, round_to(x * sigmoid, kind) * load(gate, width + i))


KERNELS = {dtype: ParallelKernel(_silu_and_mul, kind) for dtype, kind in KIND.items()}
