"""The arithmetic-bound part of attention on CPUs, through PyTorch's flash attention.

PyTorch's operator also returns the log-sum-exp of each query. So a chunk is computed in two parts without a
mask: all its queries over the prefix, and the chunk over itself, causally.
"""

from dataclasses import dataclass

import numpy as np
import torch

from ..pages.cells import CellFormat
from ..pages.segments import pages_of
from .batch import AttentionBatch
from .blend import blend

MAX_SLICES = 16
"""Up to this many runs of keys are copied run by run; more are gathered page by page."""


@dataclass(frozen=True)
class KeyRange:
    """The place of a row's keys [begin, end) in the cache."""

    slices: tuple[tuple[int, int], ...]
    """(cell of the first key of the first head, length) of each run; empty if there are too many"""
    pages: torch.Tensor
    """int64, the pages of the range"""
    page_size: int
    skipped: int
    """keys of the first page before the range"""
    length: int

    @staticmethod
    def find(batch: AttentionBatch, runs: np.ndarray, row: int, begin: int, end: int) -> "KeyRange":
        """runs: the row's runs, int64 [runs, 3] (see `runs`)."""
        starts = np.maximum(runs[:, 0], begin)
        stops = np.minimum(runs[:, 0] + runs[:, 2], end)
        inside = np.flatnonzero(stops > starts)
        slices: tuple[tuple[int, int], ...] = ()
        if len(inside) <= MAX_SLICES:
            cells = runs[inside, 1] + starts[inside] - runs[inside, 0]
            lengths = stops[inside] - starts[inside]
            slices = tuple(zip(cells.tolist(), lengths.tolist(), strict=True))
        first = begin // batch.page_size
        table = batch.page_tables[row][first : -(-end // batch.page_size)]
        pages = torch.from_numpy(table.astype(np.int64))
        skipped = begin - first * batch.page_size
        return KeyRange(slices, pages, batch.page_size, skipped, end - begin)

    def read(self, kv: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """Keys and values [2, kv_heads, length, head_dim] in q's dtype: a view if one run stores them so."""
        return CellFormat(kv.dtype).decode(self._cells(kv), q.shape[2], q.dtype)

    def _cells(self, kv: torch.Tensor) -> torch.Tensor:
        if self.slices:
            parts = [_run(kv, cell, length) for cell, length in self.slices]
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        gathered = pages_of(kv, self.pages, self.page_size).flatten(2, 3)
        return gathered[:, :, self.skipped : self.skipped + self.length]


def _run(kv: torch.Tensor, cell: int, length: int) -> torch.Tensor:
    """The cells of a run, [2, kv_heads, length, cell]."""
    size = kv.shape[4]
    shape, strides = (*kv.shape[:2], length, size), (*kv.stride()[:2], size, 1)
    return kv.as_strided(shape, strides, kv.storage_offset() + cell * size)


@dataclass(frozen=True)
class Chunk:
    """The query tokens [token, token + count) of a row and the keys that they see."""

    token: int
    count: int
    keys: KeyRange
    prefix: int
    """leading keys that every query of the chunk sees; the others are the chunk's own"""
    mask: torch.Tensor | None
    """float32 [count, keys], added to the scores, where a window cuts into the keys"""


def plan_chunk(batch: AttentionBatch, runs: np.ndarray, row: int, token: int, window: int | None) -> Chunk:
    count, length = int(batch.query_lengths[row]), int(batch.kv_lengths[row])
    begin = 0 if window is None else max(0, length - count + 1 - window)
    keys = KeyRange.find(batch, runs, row, begin, length)
    mask = None if window is None or window >= length else _window_mask(count, length - begin, window)
    return Chunk(token, count, keys, length - count - begin, mask)


def _window_mask(count: int, length: int, window: int) -> torch.Tensor:
    query = torch.arange(length - count, length)[:, None]
    key = torch.arange(length)[None, :]
    hidden = (key > query) | (key <= query - window)
    return torch.zeros(count, length).masked_fill_(hidden, float("-inf"))


def flash(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    causal: bool,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q [heads, queries, head_dim] over keys and values [kv_heads, length, head_dim].

    Returns the output [heads, queries, head_dim] and the float32 log-sum-exp [heads, queries].
    """
    output, logsum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q[None], keys[None], values[None], 0.0, causal, attn_mask=mask, scale=scale
    )
    return output[0], logsum[0]


def attend_chunk(q: torch.Tensor, kv: torch.Tensor, chunk: Chunk, scale: float, out: torch.Tensor) -> None:
    """Compute the chunk's rows of out [tokens, heads, head_dim]."""
    query = q[chunk.token : chunk.token + chunk.count].transpose(0, 1)
    target = out[chunk.token : chunk.token + chunk.count]
    keys, values = chunk.keys.read(kv, q)
    if chunk.mask is not None:
        result, _ = flash(query, keys, values, scale, False, chunk.mask.to(q.dtype))
        target.copy_(result.transpose(0, 1))
        return
    split = chunk.prefix
    own, own_sum = flash(query, keys[:, split:], values[:, split:], scale, True, None)
    if split == 0:
        target.copy_(own.transpose(0, 1))
        return
    prefix, prefix_sum = flash(query, keys[:, :split], values[:, :split], scale, False, None)
    by_token = [t.transpose(0, 1).contiguous() for t in (own, own_sum, prefix, prefix_sum)]
    blend(by_token[0], by_token[1], by_token[2], by_token[3], target)


@dataclass(frozen=True)
class SharedPart:
    """Keys that the rows of the query tokens [token, token + count) share, and the place of their partial
    results."""

    token: int
    count: int
    keys: KeyRange
    partial: int
    stride: int


def attend_shared(
    q: torch.Tensor,
    kv: torch.Tensor,
    shared: SharedPart,
    scale: float,
    partial: torch.Tensor,
    partial_sum: torch.Tensor,
) -> None:
    """Attend from a group's queries to its shared keys, all query heads of a KV head in one matrix.

    partial: float32 [partials, heads, head_dim]; partial_sum: float32 [partials, heads].
    """
    kv_heads, head_dim = kv.shape[1], q.shape[2]
    query = q[shared.token : shared.token + shared.count].view(shared.count, kv_heads, -1, head_dim)
    keys, values = shared.keys.read(kv, q)
    folded = query.transpose(0, 1).reshape(kv_heads, -1, head_dim)
    output, logsum = flash(folded, keys, values, scale, False, None)
    end = shared.partial + shared.count * shared.stride
    spread = output.reshape(kv_heads, shared.count, -1, head_dim).transpose(0, 1).flatten(1, 2)
    partial[shared.partial : end : shared.stride].copy_(spread)
    spread_sum = logsum.reshape(kv_heads, shared.count, -1).transpose(0, 1).flatten(1, 2)
    partial_sum[shared.partial : end : shared.stride].copy_(spread_sum)
