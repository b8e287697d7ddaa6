"""What groups of rows cost on the model's device (see docs/kernels.md)."""

from __future__ import annotations

import torch

from ...kernels.common.vectors import LANES
from ...kernels.pages.cells import CellFormat
from ..messages import GroupCost
from .cache_spec import CacheSpec

CUDA_MIN_SHARED_TOKENS = 64
"""See `GroupCost.min_shared_tokens`. On a GPU only the cost of merging was measured."""


def group_cost(spec: CacheSpec, stored: torch.dtype, device: torch.device) -> GroupCost:
    """stored: the dtype of the KV cache"""
    if device.type == "cpu":
        one_vector = LANES * spec.kv_heads // spec.heads
        return GroupCost(chunk_tokens=max(1, one_vector))
    from ...kernels.attention.cuda import Shape, merged_tokens  # Triton may be missing without a GPU
    from ...kernels.attention.cuda_tiles import GROUP
    from ...kernels.attention.fixed_steps import LEVELS

    shape = Shape(spec.heads, spec.kv_heads, spec.head_dim, None)
    merged = merged_tokens(shape, CellFormat(stored).bytes(spec.head_dim))
    return GroupCost(
        merged,
        CUDA_MIN_SHARED_TOKENS,
        chunk_tokens=max(1, GROUP // shape.repeat),  # more would fill the largest tiles alone
        levels=LEVELS - 1,
    )
