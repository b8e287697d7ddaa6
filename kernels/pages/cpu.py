# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Page copies on CPUs."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from ..common.numba_tools import compiled, fetch_add, pointer, shifted
from ..common.threads import Callback, thread_count
from .segments import Segments, pages_of, set_pages

WORD = 4  # bytes


def copy_pages(
    kvs: Sequence[torch.Tensor], page_size: int, sources: Sequence[int], destinations: Sequence[int]
) -> None:
    """See `pages.copy_pages`."""
    for kv in kvs:
        segments, kv_heads, cell_bytes = Segments.of(kv), kv.shape[1], kv.shape[4] * kv.element_size()
        assert page_size * cell_bytes % WORD == 0
        moves = np.array(
            [[segments.first_cell(page * page_size) for page in pages] for pages in (sources, destinations)],
            dtype=np.int64,
        )
        strides = np.array([segments.head, segments.value, page_size, *moves.ravel()]) * cell_bytes // WORD
        arguments = (kv.data_ptr(), kv_heads, len(sources), strides.ctypes.data)
        callback().run(arguments, thread_count(2 * kv_heads * page_size * kv.shape[4] * len(sources)))


class CpuMoves:
    """See `pages.PageMoves`."""

    def __init__(
        self, kvs: Sequence[torch.Tensor], pages: Sequence[int], memory: torch.Tensor, places: Sequence[int]
    ) -> None:
        self._kvs, self._pages = kvs, torch.tensor(pages, dtype=torch.int64)
        self._places = list(places)
        planes, cell = kvs[0].shape[:2], kvs[0].shape[4]
        self._memory = memory.view(*memory.shape[:2], *planes, -1, cell)
        self._page_size = self._memory.shape[4]

    def save(self) -> None:
        for layer, kv in enumerate(self._kvs):
            pages = pages_of(kv, self._pages, self._page_size)
            self._memory[self._places, layer] = pages.permute(2, 0, 1, 3, 4)

    def load(self, layers: range) -> None:
        for layer in layers:
            pages = self._memory[self._places, layer].permute(1, 2, 0, 3, 4)
            set_pages(self._kvs[layer], self._pages, pages)


@compiled
def _copy_pages(arguments):
    """Arguments: the counter of (head, side, move) triples; the address of a layer's cache, its KV heads, the
    number of moves; the address of words from one head to the next one, from a key to its value and of a
    page, then of the first words of all sources and of all destinations."""
    kv_heads, moves = arguments[2], arguments[3]
    words = pointer(arguments[4], np.int64(0))
    sources, destinations = shifted(words, 3), shifted(words, 3 + moves)
    while True:
        work = fetch_add(arguments, 1)
        if work >= 2 * kv_heads * moves:
            break
        plane, move = work // moves, work % moves
        first = plane // 2 * words[0] + plane % 2 * words[1]
        source = shifted(pointer(arguments[1], np.int32(0)), first + sources[move])
        destination = shifted(pointer(arguments[1], np.int32(0)), first + destinations[move])
        for i in range(words[2]):
            destination[i] = source[i]


def _copy(arguments):
    _copy_pages(arguments)


@cache
def callback() -> Callback:
    return Callback(_copy)
