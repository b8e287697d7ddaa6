"""Copies of whole KV pages: copy-on-write of a partial page, offload to host memory, restore."""

from collections.abc import Sequence
from typing import Protocol

import torch

from . import cpu


def copy_pages(
    kvs: Sequence[torch.Tensor], page_size: int, sources: Sequence[int], destinations: Sequence[int]
) -> None:
    """Copy page sources[i] to destinations[i] in every layer.

    kvs: each layer's cache, as in `attention.paged_attention`. No page is both a source and a destination,
    and destinations are distinct.
    """
    if not kvs or not sources:
        return
    if kvs[0].is_cuda:
        from . import cuda

        cuda.copy_pages(kvs, page_size, sources, destinations)
    else:
        cpu.copy_pages(kvs, page_size, sources, destinations)


class PageMoves(Protocol):
    """Copies between pages[i] of every layer and memory[places[i]], for all i."""

    def save(self) -> None:
        """Copy the pages to memory."""

    def load(self, layers: range) -> None:
        """Copy these layers from memory to the pages."""


def page_moves(
    kvs: Sequence[torch.Tensor], pages: Sequence[int], memory: torch.Tensor, places: Sequence[int]
) -> PageMoves:
    """Prepare copies; pages are distinct, and so are places.

    kvs: as in `copy_pages`. memory: [places, layers or more, 2 × kv_heads, page_size × cell] of the same
    dtype in host memory, which is pinned if the pages are on a CUDA device. There each copy is a launch on
    the current stream, which must be the same for all copies.
    """
    if kvs[0].is_cuda:
        from . import cuda

        return cuda.CudaMoves(kvs, pages, memory, places)
    return cpu.CpuMoves(kvs, pages, memory, places)
