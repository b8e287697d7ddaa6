"""The tokens of a step: their positions and places in the KV cache, and on a CPU those that slots sampled."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .jit import compiled
from .numba_tools import fetch_add, pointer
from .threads import ParallelKernel

NO_SLOT = -1


class StepTokens(NamedTuple):
    """The tokens of the rows, one row after the other."""

    lengths: NDArray[np.int64]
    """[rows]: tokens of each row"""
    ends: NDArray[np.int64]
    """[rows]: where each row's tokens end"""
    positions: NDArray[np.int64]
    """[tokens]"""
    places: NDArray[np.int64]
    """[tokens]: page × page_size + offset"""
    slots: NDArray[np.int32]
    """[tokens]: the slot whose last token is the token; `NO_SLOT` for tokens that are given"""

    @staticmethod
    def of(
        slots: NDArray[np.int64],
        starts: NDArray[np.int64],
        given: NDArray[np.int64],
        drafts: NDArray[np.int32],
        pages: NDArray[np.int32],
        counts: NDArray[np.int64],
        page_size: int,
    ) -> "StepTokens":
        """slots, starts, given, drafts: [rows], the slot, the position of the first token, the number of
        given tokens (0: the row's first token is the last one of its slot), and that of drafts after them
        pages: [all slots, pages], their page tables, of which the first `counts` [all slots] are valid
        """
        return StepTokens(*_lay_out(slots, starts, given, drafts, pages, counts, page_size))


@compiled
def _lay_out(slots, starts, given, drafts, pages, counts, page_size):
    rows = len(slots)
    lengths, ends = np.empty(rows, np.int64), np.empty(rows, np.int64)
    total = 0
    for row in range(rows):
        lengths[row] = max(1, given[row]) + drafts[row]
        total += lengths[row]
        ends[row] = total
    positions, places = np.empty(total, np.int64), np.empty(total, np.int64)
    fed = np.empty(total, np.int32)
    token = 0
    for row in range(rows):
        slot, start, end = slots[row], starts[row], starts[row] + lengths[row]
        assert (end - 1) // page_size < counts[slot], "a token has no page"
        for position in range(start, end):
            positions[token] = position
            places[token] = np.int64(pages[slot, position // page_size]) * page_size + position % page_size
            fed[token] = slot if given[row] == 0 and position == start else NO_SLOT
            token += 1
    return lengths, ends, positions, places, fed


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
