"""KV caches in the order of `kernels.pages.segments`."""

from __future__ import annotations

import torch


def segmented(kv: torch.Tensor, pages: int) -> torch.Tensor:
    """A copy of kv [2, kv_heads, num_pages, page_size, cell] in segments of `pages` pages:
    [2, kv_heads, segments, pages * page_size, cell]. What is left of the last segment is NaN, or -1.
    """
    _, kv_heads, num_pages, page_size, cell = kv.shape
    segments = -(-num_pages // pages)
    nothing = -1 if kv.dtype == torch.int8 else torch.nan
    found = torch.full((segments, 2, kv_heads, pages, page_size, cell), nothing, dtype=kv.dtype)
    for page in range(num_pages):
        found[page // pages, :, :, page % pages] = kv[:, :, page]
    return found.flatten(3, 4).permute(1, 2, 0, 3, 4)
