"""Attention over a paged KV cache."""

import torch

from . import cpu
from .batch import FULL_REACH, AttentionBatch, Reach

__all__ = ["FULL_REACH", "AttentionBatch", "Reach", "paged_attention"]


def paged_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    reach: Reach = FULL_REACH,
    batch_invariant: bool = False,
    outputs_only: bool = False,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend from this step's tokens to their rows' cached tokens, causally.

    q: [tokens, heads, head_dim], the rows of `batch` one after another; may be a strided view.
    kv: [2, kv_heads, num_pages, page_size, cell], of the same dtype, int8 or, on CUDA, FP8 (see
    `pages.cells`); on CUDA contiguous; heads is a multiple of kv_heads. On a CPU, segments of several pages
    may stand in place of pages, in the order of `pages.segments`.
    batch_invariant: the bits of a token's result do not depend on the steps into which its row was divided,
    nor on other rows, groups and page ids. CPU tensors only.
    outputs_only: the results of tokens that are not among `batch.outputs` are undefined. CPUs do not compute
    items without such a token.
    softcap: a score s, after scaling, becomes softcap × tanh(s / softcap).
    sinks: float32 [heads], a score of each head that takes part in the softmax without a value.
    Returns [tokens, heads, head_dim], contiguous. Scores and softmax are float32.
    """
    if q.is_cuda:
        assert not batch_invariant, "only the CPU kernels have such a mode"
        from . import cuda

        return cuda.paged_attention(q, kv, batch, scale, reach, softcap, sinks)
    return cpu.paged_attention(q, kv, batch, scale, reach, batch_invariant, outputs_only, softcap, sinks)
