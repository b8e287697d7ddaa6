"""Copies of whole KV pages: copy-on-write of a partial page, offload to host memory, restore."""

from collections.abc import Sequence

import torch

from . import cpu


def copy_pages(kvs: Sequence[torch.Tensor], sources: Sequence[int], destinations: Sequence[int]) -> None:
    """Copy page sources[i] to destinations[i] in every layer.

    kvs: one [2, kv_heads, num_pages, page_size, cell] tensor for each layer (see `cells`). No page is both a
    source and a destination, and destinations are distinct.
    """
    if not kvs or not sources:
        return
    if kvs[0].is_cuda:
        from . import cuda

        cuda.copy_pages(kvs, sources, destinations)
    else:
        cpu.copy_pages(kvs, sources, destinations)


def save_pages(
    kvs: Sequence[torch.Tensor], pages: Sequence[int], memory: torch.Tensor, places: Sequence[int]
) -> None:
    """Copy page pages[i] of every layer to memory[places[i]].

    kvs: as in `copy_pages`. memory: [places, layers, 2 × kv_heads, page_size × cell] of the same dtype in
    host memory, which is pinned if the pages are on a CUDA device. There the copy runs on the current stream.
    """
    if kvs[0].is_cuda:
        from . import cuda

        cuda.move_pages(kvs, 0, pages, memory, places, save=True)
    else:
        for layer, kv in enumerate(kvs):
            cpu.save_pages(kv, layer, pages, memory, places)


def load_pages(
    kv: torch.Tensor, layer: int, pages: Sequence[int], memory: torch.Tensor, places: Sequence[int]
) -> None:
    """Copy memory[places[i], layer] to page pages[i] of `kv`, the layer's tensor: the inverse of
    `save_pages`."""
    if kv.is_cuda:
        from . import cuda

        cuda.move_pages([kv], layer, pages, memory, places, save=False)
    else:
        cpu.load_pages(kv, layer, pages, memory, places)
