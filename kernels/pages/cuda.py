"""Page copies on CUDA, one launch for all layers. A plane is the keys or the values of one head.

The kernels copy words of 4 bytes, whatever the cells are.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
import triton
import triton.language as tl

from ..common.upload import upload

BLOCK = 1024
PROGRAMS = 16
"""Programs that copy pages from or to host memory; most multiprocessors compute only the step. With 16 KB
each, 256 KB are in flight: 4 µs of a bus with 55 GB/s (PCIe 5.0 × 16), whose latency is 1 to 2 µs (our
assumption)."""
TILE = 4096
"""words that a program copies at a time"""
WARPS = 8


@triton.jit
def _caches(like, addresses):
    """Layers' caches as words of the type of `like`. PyTorch aligns them, so that loads can be wide."""
    return tl.multiple_of(addresses.to(tl.pointer_type(like.dtype.element_ty)), 16)


# Compiled once for any number of moves and layers.
@triton.jit(do_not_specialize=["move_count", "layers"])
def copy_pages_kernel(
    like, addresses, move_count, layers, planes, pages, page_words, BLOCK: tl.constexpr
):  # fmt: skip
    """addresses: the addresses of the layers' caches, then the source pages, then the destination pages"""
    move = tl.program_id(0)
    layer = tl.program_id(1) // planes
    plane = (tl.program_id(1) % planes).to(tl.int64)
    kv = _caches(like, tl.load(addresses + layer)) + plane * pages * page_words
    moves = addresses + layers
    source = kv + tl.load(moves + move) * page_words
    destination = kv + tl.load(moves + move_count + move) * page_words
    for start in range(0, page_words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        inside = word < page_words
        tl.store(destination + word, tl.load(source + word, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["move_count", "all_layers", "first", "layers"])
def move_pages_kernel(
    memory, addresses, move_count, all_layers, first, layers, planes, pages, page_words, place_words,
    SAVE: tl.constexpr, PIECES: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Copies pages of `layers` layers, beginning with layer `first`, `PIECES` planes at a time.

    addresses: all layers' caches, then the pages, then the places. memory: pinned host memory
    """
    moves = addresses + all_layers
    count = move_count * layers * planes
    for start in range(tl.program_id(0) * PIECES, count, tl.num_programs(0) * PIECES):
        piece = start + tl.arange(0, PIECES)
        exists = piece < count
        move, rest = piece // (layers * planes), piece % (layers * planes) + first * planes
        page = tl.load(moves + move, mask=exists, other=0) + (rest % planes).to(tl.int64) * pages
        place = tl.load(moves + move_count + move, mask=exists, other=0) * place_words
        place += rest.to(tl.int64) * page_words
        caches = _caches(memory, tl.load(addresses + rest // planes, mask=exists, other=0))
        on_device, in_memory = caches + page * page_words, memory + place
        for begin in range(0, page_words, WORDS):
            word = begin + tl.arange(0, WORDS)
            inside = exists[:, None] & (word < page_words)[None, :]
            here, there = on_device[:, None] + word[None, :], in_memory[:, None] + word[None, :]
            if SAVE:
                tl.store(there, tl.load(here, mask=inside), mask=inside)
            else:
                tl.store(here, tl.load(there, mask=inside), mask=inside)


class CudaMoves:
    """The `pages.PageMoves` of CUDA: the device accesses host memory directly."""

    def __init__(
        self, kvs: Sequence[torch.Tensor], pages: Sequence[int], memory: torch.Tensor, places: Sequence[int]
    ) -> None:
        self._planes, self._words = _planes_and_words(kvs[0])
        self._memory = memory.view(torch.int32)
        assert memory.is_contiguous() and self._memory.shape[2:] == (self._planes, self._words)
        assert len(kvs) <= self._memory.shape[1]
        self._kvs, self._pages, self._places = kvs, pages, places

    def save(self) -> None:
        self._move(range(len(self._kvs)), save=True)

    def load(self, layers: range) -> None:
        self._move(layers, save=False)

    @cached_property
    def _addresses(self) -> torch.Tensor:
        return _table(self._kvs, self._pages, self._places)

    def _move(self, layers: range, save: bool) -> None:
        words = min(TILE, triton.next_power_of_2(self._words))
        pieces = TILE // words
        programs = triton.cdiv(len(self._pages) * len(layers) * self._planes, pieces)
        move_pages_kernel[(min(programs, PROGRAMS),)](
            self._memory,
            self._addresses,
            len(self._pages),
            len(self._kvs),
            layers.start,
            len(layers),
            self._planes,
            self._kvs[0].shape[2],
            self._words,
            self._memory.stride(0),
            SAVE=save,
            PIECES=pieces,
            WORDS=words,
            num_warps=WARPS,
        )


def copy_pages(
    kvs: Sequence[torch.Tensor], page_size: int, sources: Sequence[int], destinations: Sequence[int]
) -> None:
    assert kvs[0].shape[3] == page_size
    planes, words = _planes_and_words(kvs[0])
    copy_pages_kernel[(len(sources), len(kvs) * planes)](
        kvs[0].view(torch.int32),
        _table(kvs, sources, destinations),
        len(sources),
        len(kvs),
        planes,
        kvs[0].shape[2],
        words,
        BLOCK=BLOCK,
    )


def _planes_and_words(kv: torch.Tensor) -> tuple[int, int]:
    """The number of planes in a layer's cache, and the number of words of a page in one plane."""
    page_bytes = kv.shape[3] * kv.shape[4] * kv.element_size()
    assert page_bytes % 4 == 0, f"{page_bytes} bytes of a page's keys are no whole number of words"
    return kv.shape[0] * kv.shape[1], page_bytes // 4


def _table(kvs: Sequence[torch.Tensor], first: Sequence[int], second: Sequence[int]) -> torch.Tensor:
    """int64 on the device: the addresses of the layers' caches, then both lists."""
    assert all(kv.is_contiguous() and kv.shape == kvs[0].shape for kv in kvs)
    addresses = [kv.data_ptr() for kv in kvs]
    (table,) = upload([np.array([*addresses, *first, *second], np.int64)], kvs[0].device)
    return table
