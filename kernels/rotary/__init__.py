"""Rotary position embedding (Su et al. 2021), fused with writing keys and values into the cache."""

import torch

from ..elementwise import HeadNorms
from . import cpu

__all__ = ["HeadNorms", "rotary_write_kv"]


def rotary_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    places: torch.Tensor,
    kv: torch.Tensor,
    norms: HeadNorms | None = None,
) -> None:
    """Rotate q in place and write rotated k, and v, into the cache. With `norms`, q and k are normalised
    first.

    q: [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim]; all may be strided views of one tensor,
    with the last two dimensions contiguous.
    cos_sin: float32 [max_positions, 2 * half], cosines then sines; dimensions i and half + i rotate together,
    those from 2 * half on are unchanged.
    positions: int64 [tokens]. places: int64 [tokens], page * page_size + offset; a token with a negative one
    is skipped.
    kv: [2, kv_heads, num_pages, page_size, cell], as in `attention.paged_attention`. All intermediate values
    are float32.
    """
    if q.is_cuda:
        from . import cuda

        cuda.rotary_write_kv(q, k, v, cos_sin, positions, places, kv, norms)
    else:
        cpu.rotary_write_kv(q, k, v, cos_sin, positions, places, kv, norms)
