"""Random steps of paged attention, as hypothesis strategies."""

from dataclasses import dataclass

import numpy as np
import torch
from arbora.kernels.attention import AttentionBatch
from arbora.kernels.pages.cells import CellFormat
from hypothesis import strategies as st


@dataclass(frozen=True)
class AttentionCase:
    batch: AttentionBatch
    q: torch.Tensor
    kv: torch.Tensor
    scale: float
    window: int | None


@dataclass(frozen=True)
class Step:
    """The lengths of a step's rows; groups are (rows, shared pages) of leading decode rows."""

    page_size: int
    groups: tuple[tuple[int, int], ...]
    decode_lengths: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...]
    """(query tokens, prefix)"""


def steps(max_length: int = 150) -> st.SearchStrategy[Step]:
    return st.builds(
        Step,
        page_size=st.sampled_from([1, 16, 64]),
        groups=st.lists(st.tuples(st.integers(2, 5), st.integers(1, 3)), max_size=2).map(tuple),
        decode_lengths=st.lists(st.integers(1, max_length), max_size=5).map(tuple),
        chunks=st.lists(st.tuples(st.integers(1, 40), st.integers(0, max_length)), max_size=2).map(tuple),
    ).filter(lambda step: bool(step.groups or step.decode_lengths or step.chunks))


def build_case(
    step: Step,
    heads: tuple[int, int],
    head_dim: int,
    window: int | None,
    dtype: torch.dtype,
    scattered: bool,
    seed: int,
    stored: torch.dtype | None = None,
) -> AttentionCase:
    """heads: query heads, KV heads. stored: the cache's dtype, if not `dtype`."""
    random = np.random.default_rng(seed)
    tail = 1 + random.integers(0, 30, size=sum(rows for rows, _ in step.groups))
    queries: list[int] = []
    lengths: list[int] = []
    groups: list[tuple[int, int, int]] = []
    for rows, pages in step.groups:
        groups.append((len(lengths), rows, pages * step.page_size))
        for _ in range(rows):
            lengths.append(pages * step.page_size + int(tail[len(lengths)]))
    lengths += step.decode_lengths
    queries += [1] * len(lengths)
    for count, prefix in step.chunks:
        queries.append(count)
        lengths.append(prefix + count)
    tables, pages = _page_tables(step, lengths, groups, scattered, random)
    torch.manual_seed(seed)
    q = torch.randn(sum(queries), heads[0], head_dim).to(dtype)
    kv = CellFormat(stored or dtype).encode(torch.randn(2, heads[1], pages, step.page_size, head_dim))
    batch = AttentionBatch.build(queries, lengths, tables, step.page_size, torch.device("cpu"), groups)
    return AttentionCase(batch, q, kv, head_dim**-0.5, window)


def _page_tables(
    step: Step,
    lengths: list[int],
    groups: list[tuple[int, int, int]],
    scattered: bool,
    random: np.random.Generator,
) -> tuple[list[np.ndarray], int]:
    counts = [-(-length // step.page_size) for length in lengths]
    total = sum(counts) + 3
    ids = random.permutation(total) if scattered else np.arange(total)
    ends = np.cumsum(counts)
    tables = [ids[end - count : end].astype(np.int32) for end, count in zip(ends, counts, strict=True)]
    for first, rows, shared in groups:
        for row in range(first + 1, first + rows):
            tables[row][: shared // step.page_size] = tables[first][: shared // step.page_size]
    return tables, total
