"""Fill numba's cache, so that no start of a server compiles: `python -m arbora.kernels.precompile`."""

from collections.abc import Sequence

import numpy as np
import torch

from . import (
    activation_cpu,
    attention_blend,
    attention_numba,
    norm_cpu,
    pages_cpu,
    rotary_cpu,
)
from .attention import AttentionBatch, paged_attention


def compile_forward_kernels(dtypes: Sequence[torch.dtype] = (torch.bfloat16, torch.float32)) -> None:
    """Compile the CPU kernels of the forward pass; later processes load what is cached on disk."""
    pages_cpu.callback()
    for dtype in dtypes:
        attention_numba.callbacks(dtype)
        for module in (activation_cpu, attention_blend, norm_cpu, rotary_cpu):
            module.callback(dtype)
    # A step with a group, for the functions that plan it.
    tables = [np.zeros(2, np.int32)] * 2
    batch = AttentionBatch.build([1, 1], [2, 2], tables, 1, torch.device("cpu"), [(0, 2, 1)])
    paged_attention(torch.zeros(2, 1, 32), torch.zeros(2, 1, 1, 1, 32), batch, 1.0)


if __name__ == "__main__":
    compile_forward_kernels()
