"""The clamped gate of gpt-oss's experts on a CPU."""

import numpy as np
import torch

from ..common.jit import compiled_fast
from ..common.numba_tools import (
    KIND,
    exp,
    fetch_add,
    load,
    pack_float,
    pointer,
    shift,
    store,
    unpack_float,
)
from ..common.threads import PIECE, ParallelKernel, thread_count


def clamp_and_gate(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """As `experts.clamp_and_gate`."""
    assert gate_up.is_contiguous()
    rows, width = gate_up.shape
    out = torch.empty(rows, width // 2, dtype=gate_up.dtype)
    arguments = (rows, width // 2, gate_up.data_ptr(), pack_float(alpha), pack_float(limit), out.data_ptr())
    GATES[gate_up.dtype].run(arguments, thread_count(gate_up.numel()))
    return out


@compiled_fast
def _clamp_and_gate(arguments, kind):
    """Arguments: the counter of blocks of rows, then those of `clamp_and_gate`."""
    rows, width = arguments[1], arguments[2]
    alpha, limit = unpack_float(arguments[4]), unpack_float(arguments[5])
    step = max(1, PIECE // width)
    while True:
        begin = fetch_add(arguments, step)
        if begin >= rows:
            break
        for row in range(begin, min(rows, begin + step)):
            gates = shift(pointer(arguments[3], kind), 2 * row * width)
            ups, out = shift(gates, width), shift(pointer(arguments[6], kind), row * width)
            for i in range(width):
                gate, up = load(gates, i), load(ups, i)
                gate = limit if gate > limit else gate  # NaN stays
                up = limit if up > limit else (-limit if up < -limit else up)
                tail = exp(min(np.float32(80), -alpha * gate))
                store(out, i, (up + np.float32(1)) * (gate / (np.float32(1) + tail)))


GATES = {dtype: ParallelKernel(_clamp_and_gate, kind) for dtype, kind in KIND.items()}
