"""Attention with settings that the fast kernels lack, in PyTorch: the rows one after the other."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..pages.cells import CellFormat
from ..pages.segments import gather_pages
from .batch import AttentionBatch

MAX_SCORES = 1 << 24
"""scores that are in memory at once: 64 MiB"""


class ScoreRules(NamedTuple):
    """What changes the scores of attention beside their scale and the causal mask."""

    window: int | None = None
    """token i sees tokens (i - window, i] only"""
    chunk: int | None = None
    """token i sees the tokens since the last position that is a multiple of `chunk`"""
    softcap: float | None = None
    """a score s becomes softcap × tanh(s / softcap)"""


def paged_attention_by_rows(
    q: torch.Tensor,
    kv: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    rules: ScoreRules,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `paged_attention`. sinks: [heads], scores without values that take part in the softmax."""
    out = torch.empty_like(q)
    start = 0
    for row, (count, length) in enumerate(
        zip(batch.query_lengths.tolist(), batch.kv_lengths.tolist(), strict=True)
    ):
        keys, values = _row_kv(kv, batch, row, length, q)
        for part in _parts(count, q.shape[1] * length):
            of_row = slice(start + part.start, start + part.stop)
            first = length - count + part.start
            out[of_row] = _attend(q[of_row], keys, values, first, scale, rules, sinks)
        start += count
    return out


def _parts(count: int, scores_of_token: int) -> Iterator[slice]:
    """Runs of `count` tokens whose scores fit into memory."""
    size = max(1, MAX_SCORES // scores_of_token)
    for start in range(0, count, size):
        yield slice(start, min(count, start + size))


def _row_kv(
    kv: torch.Tensor, batch: AttentionBatch, row: int, length: int, q: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a row, [kv_heads, length, head_dim] in q's dtype."""
    pages = -(-length // batch.page_size)
    if batch.page_tables:
        table = torch.from_numpy(batch.page_tables[row][:pages])
    else:
        tables = batch.device_tables()
        table = tables.tables.view(-1)[int(tables.starts[row]) :][:pages]
    cells = gather_pages(kv, table.to(kv.device, torch.int64), batch.page_size).flatten(2, 3)[:, :, :length]
    keys, values = CellFormat(kv.dtype).decode(cells, q.shape[2], q.dtype)
    return keys, values


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    first: int,
    scale: float,
    rules: ScoreRules,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of the tokens q [tokens, heads, head_dim] from position `first` on."""
    count, heads, head_dim = q.shape
    kv_heads, length, _ = keys.shape
    # Query heads that share a KV head stand beside each other, so that keys and values need no copies.
    grouped = q.transpose(0, 1).reshape(kv_heads, -1, head_dim)
    scores = (grouped @ keys.transpose(1, 2)).float().view(heads, count, length) * scale
    if rules.softcap is not None:
        scores = torch.tanh(scores / rules.softcap) * rules.softcap
    scores = scores.masked_fill(~_visible(first, count, length, rules, q.device), float("-inf"))
    if sinks is not None:
        sink = sinks.float().view(heads, 1, 1).expand(-1, count, 1)
        weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    mixed = weights.to(values.dtype).reshape(kv_heads, -1, length) @ values
    return mixed.view(heads, count, head_dim).transpose(0, 1)


def _visible(first: int, count: int, length: int, rules: ScoreRules, device: torch.device) -> torch.Tensor:
    """Which of the keys each token sees, bool [count, length]."""
    query = torch.arange(first, first + count, device=device)[:, None]
    key = torch.arange(length, device=device)[None, :]
    visible = key <= query
    if rules.window is not None:
        visible &= key > query - rules.window
    if rules.chunk is not None:
        visible &= key >= query // rules.chunk * rules.chunk
    return visible
