"""Page copies on CPUs."""

from collections.abc import Sequence

import numpy as np
import torch

from ..common.numba_tools import fetch_add, pointer, shift
from ..common.threads import ParallelKernel, thread_count
from .segments import Segments, gather_pages, set_pages

WORD = 4  # size of a copied word in bytes


def copy_pages(
    kvs: Sequence[torch.Tensor], page_size: int, sources: Sequence[int], destinations: Sequence[int]
) -> None:
    kv = kvs[0]
    segments, kv_heads, cell_bytes = Segments.of(kv), kv.shape[1], kv.shape[4] * kv.element_size()
    assert page_size * cell_bytes % WORD == 0 and all(other.stride() == kv.stride() for other in kvs)
    first_cells = [segments.first_cell(page * page_size) for page in (*sources, *destinations)]
    words = np.array([segments.head, segments.value, page_size, *first_cells]) * cell_bytes // WORD
    layers = np.array([other.data_ptr() for other in kvs])
    arguments = (len(kvs), kv_heads, len(sources), layers.ctypes.data, words.ctypes.data)
    elements = 2 * len(kvs) * kv_heads * page_size * kv.shape[4] * len(sources)
    copy_pages_kernel.run(arguments, thread_count(elements))


class CpuMoves:
    """The `pages.PageMoves` of a CPU."""

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
            pages = gather_pages(kv, self._pages, self._page_size)
            self._memory[self._places, layer] = pages.permute(2, 0, 1, 3, 4)

    def load(self, layers: range) -> None:
        for layer in layers:
            pages = self._memory[self._places, layer].permute(1, 2, 0, 3, 4)
            set_pages(self._kvs[layer], self._pages, pages)


@ParallelKernel
def copy_pages_kernel(arguments):
    """Copies pages in turns: a turn copies the keys or the values of one head of one page in one layer.

    Arguments: the number of turns taken so far, which all threads count up; the numbers of layers, of KV
    heads and of pages to copy; the address of an array with the address of each layer's cache; the address
    of an array of numbers of words: from one head to the next one, from a key to its value, of one head's
    part of a page, from the start of the cache to each page to copy, and to each page that is written.
    """
    kv_heads, moves = arguments[2], arguments[3]
    layers, words = pointer(arguments[4], np.int64(0)), pointer(arguments[5], np.int64(0))
    sources, destinations = shift(words, 3), shift(words, 3 + moves)
    while True:
        work = fetch_add(arguments, 1)
        if work >= arguments[1] * 2 * kv_heads * moves:
            break
        plane, move = work // moves, work % moves
        head, side = plane // 2 % kv_heads, plane % 2
        kv = shift(pointer(layers[plane // 2 // kv_heads], np.int32(0)), head * words[0] + side * words[1])
        source, destination = shift(kv, sources[move]), shift(kv, destinations[move])
        for i in range(words[2]):
            destination[i] = source[i]
