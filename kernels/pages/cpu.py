# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Page copies on CPUs."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from ..common.numba_tools import compiled, fetch_add, pointer, shifted
from ..common.threads import Callback, thread_count


def copy_pages(kvs: Sequence[torch.Tensor], sources: Sequence[int], destinations: Sequence[int]) -> None:
    """See `pages.copy_pages`."""
    moves = np.array([sources, destinations], dtype=np.int64)
    for kv in kvs:
        planes, page = kv.shape[0] * kv.shape[1], kv.shape[3] * kv.shape[4]
        words, rest = divmod(page * kv.element_size(), 4)
        assert kv.is_contiguous() and rest == 0
        arguments = (kv.data_ptr(), planes, kv.shape[2], words, len(sources), moves.ctypes.data)
        callback().run(arguments, thread_count(planes * page * len(sources)))


class CpuMoves:
    """See `pages.PageMoves`."""

    def __init__(
        self, kvs: Sequence[torch.Tensor], pages: Sequence[int], memory: torch.Tensor, places: Sequence[int]
    ) -> None:
        self._kvs, self._pages, self._memory, self._places = kvs, list(pages), memory, list(places)

    def save(self) -> None:
        for layer, kv in enumerate(self._kvs):
            self._memory[self._places, layer] = _planes(kv)[:, self._pages].transpose(0, 1)

    def load(self, layers: range) -> None:
        for layer in layers:
            _planes(self._kvs[layer])[:, self._pages] = self._memory[self._places, layer].transpose(0, 1)


def _planes(kv: torch.Tensor) -> torch.Tensor:
    """[2 × kv_heads, num_pages, page_size × head_dim]"""
    return kv.view(kv.shape[0] * kv.shape[1], kv.shape[2], -1)


@compiled
def _copy_pages(arguments):
    """Arguments: the counter of (plane, move) pairs, where a plane is K or V of a head, then those of
    `copy_pages`."""
    planes, pages, words, moves = arguments[2], arguments[3], arguments[4], arguments[5]
    sources = pointer(arguments[6], np.int64(0))
    destinations = shifted(sources, moves)
    while True:
        work = fetch_add(arguments, 1)
        if work >= planes * moves:
            break
        plane = shifted(pointer(arguments[1], np.int32(0)), work // moves * pages * words)
        source = shifted(plane, sources[work % moves] * words)
        destination = shifted(plane, destinations[work % moves] * words)
        for i in range(words):
            destination[i] = source[i]


def _copy(arguments):
    _copy_pages(arguments)


@cache
def callback() -> Callback:
    return Callback(_copy)
