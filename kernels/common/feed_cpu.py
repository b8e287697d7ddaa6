"""The input tokens of a step on the CPU, of which some are the last tokens of slots."""

import numpy as np
import torch

from .numba_tools import fetch_add, pointer
from .threads import ParallelKernel


def feed_tokens(tokens: torch.Tensor, slots: torch.Tensor, last_tokens: torch.Tensor) -> None:
    """Replaces tokens[i] by last_tokens[slots[i]] where slots[i] >= 0.

    tokens, slots: int32 [n]; last_tokens: int32 [slots]; all contiguous.
    """
    record_feed.run((len(tokens), tokens.data_ptr(), slots.data_ptr(), last_tokens.data_ptr()), 1)


@ParallelKernel
def record_feed(arguments):
    """Arguments: a counter, then those of `feed_tokens`. The first thread does all."""
    if fetch_add(arguments, 1) > 0:
        return
    tokens, slots = pointer(arguments[2], np.int32(0)), pointer(arguments[3], np.int32(0))
    last_tokens = pointer(arguments[4], np.int32(0))
    for i in range(arguments[1]):
        if slots[i] >= 0:
            tokens[i] = last_tokens[slots[i]]
