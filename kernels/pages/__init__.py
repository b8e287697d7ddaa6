"""Copies of whole KV pages: copy-on-write of a partial page, offload, restore."""

from collections.abc import Sequence

import torch

from . import cpu


def copy_pages(kvs: Sequence[torch.Tensor], sources: Sequence[int], destinations: Sequence[int]) -> None:
    """Copy page sources[i] to destinations[i] in every layer.

    kvs: one [2, kv_heads, num_pages, page_size, head_dim] tensor for each layer. No page is both a source
    and a destination, and no destination stands twice.
    """
    if not kvs or not sources:
        return
    if kvs[0].is_cuda:
        from . import cuda

        cuda.copy_pages(kvs, sources, destinations)
    else:
        cpu.copy_pages(kvs, sources, destinations)
