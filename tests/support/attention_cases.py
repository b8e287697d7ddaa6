"""Random steps of paged attention, as hypothesis strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from arbora.kernels.attention import AttentionBatch, Reach
from arbora.kernels.pages.cells import CellFormat
from hypothesis import strategies as st


@dataclass(frozen=True)
class AttentionCase:
    batch: AttentionBatch
    q: torch.Tensor
    kv: torch.Tensor
    scale: float
    reach: Reach
    softcap: float | None = None
    sinks: torch.Tensor | None = None

    def attend(self, paged_attention: Callable[..., torch.Tensor]) -> torch.Tensor:
        """The result of `paged_attention` of any device."""
        arguments = (self.q, self.kv, self.batch, self.scale, self.reach)
        return paged_attention(*arguments, softcap=self.softcap, sinks=self.sinks)

    def to(self, device: torch.device) -> AttentionCase:
        batch = replace(self.batch, device=device, plans={})
        sinks = None if self.sinks is None else self.sinks.to(device)
        return replace(self, batch=batch, q=self.q.to(device), kv=self.kv.to(device), sinks=sinks)


class Sharing(NamedTuple):
    """Rows that share pages, `inner` groups of which share more. The first row that is in no inner group
    stands before them, the others after them."""

    rows: int
    pages: int
    """beyond those of the outer groups"""
    inner: tuple[Sharing, ...] = ()

    def groups(self, first: int, outer: int, page_size: int) -> Iterator[tuple[int, int, int]]:
        """outer: pages that the outer groups share"""
        yield first, self.rows, (outer + self.pages) * page_size
        first += self.rows > sum(group.rows for group in self.inner)
        for group in self.inner:
            yield from group.groups(first, outer + self.pages, page_size)
            first += group.rows


TREE = Sharing(6, 2, (Sharing(2, 18), Sharing(3, 1, (Sharing(2, 1),))))


@dataclass(frozen=True)
class Step:
    """The lengths of a step's rows. Those in groups come first."""

    page_size: int
    groups: tuple[Sharing, ...]
    decode_lengths: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...]
    """(query tokens, prefix)"""
    grouped_tokens: int = 1
    """the most query tokens of a row in a group"""


def _with_inner(inner: st.SearchStrategy[Sharing]) -> st.SearchStrategy[Sharing]:
    return st.builds(
        lambda groups, more, pages: Sharing(more + sum(group.rows for group in groups), pages, groups),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.integers(0, 3),
        st.integers(1, 3),
    )


SINGLE = st.tuples(st.integers(1, 5), st.integers(1, 3)).map(lambda sizes: Sharing(*sizes))
SHARINGS = st.recursive(SINGLE, _with_inner, max_leaves=6)


def steps(max_length: int = 150) -> st.SearchStrategy[Step]:
    return st.builds(
        Step,
        page_size=st.sampled_from([1, 16, 64]),
        groups=st.lists(SHARINGS, max_size=2).map(tuple),
        decode_lengths=st.lists(st.integers(1, max_length), max_size=5).map(tuple),
        chunks=st.lists(st.tuples(st.integers(1, 40), st.integers(0, max_length)), max_size=2).map(tuple),
        grouped_tokens=st.sampled_from([1, 3, 20]),
    ).filter(lambda step: bool(step.groups or step.decode_lengths or step.chunks))


def build_case(
    step: Step,
    heads: tuple[int, int],
    head_dim: int,
    reach: Reach | int | None,
    dtype: torch.dtype,
    scattered: bool,
    seed: int,
    stored: torch.dtype | None = None,
    has_caps: bool = False,
) -> AttentionCase:
    """heads: query heads, KV heads. reach: a number is a window. stored: the cache's dtype, if not `dtype`.
    has_caps: whether scores have a soft cap and each head has a sink"""
    random = np.random.default_rng(seed)
    rows = sum(group.rows for group in step.groups)
    shared = np.zeros(rows, np.int64)
    groups: list[tuple[int, int, int]] = []
    starts = np.cumsum([0, *(group.rows for group in step.groups)])
    for start, group in zip(starts.tolist(), step.groups, strict=False):
        groups += group.groups(start, 0, step.page_size)
    for first, count, keys in groups:
        shared[first : first + count] = keys
    grouped = random.integers(1, step.grouped_tokens + 1, size=rows)
    queries: list[int] = [*grouped.tolist(), *([1] * len(step.decode_lengths))]
    lengths: list[int] = (shared + grouped + random.integers(0, 30, size=rows)).tolist()
    lengths += step.decode_lengths
    for count, prefix in step.chunks:
        queries.append(count)
        lengths.append(prefix + count)
    tables, pages = _page_tables(step, lengths, groups, scattered, random)
    torch.manual_seed(seed)
    q = torch.randn(sum(queries), heads[0], head_dim).to(dtype)
    kv = CellFormat(stored or dtype).encode(torch.randn(2, heads[1], pages, step.page_size, head_dim))
    batch = AttentionBatch.build(queries, lengths, tables, step.page_size, torch.device("cpu"), groups)
    reach = reach if isinstance(reach, Reach) else Reach(reach)
    softcap, sinks = (1.5, 3 * torch.randn(heads[0])) if has_caps else (None, None)
    return AttentionCase(batch, q, kv, head_dim**-0.5, reach, softcap, sinks)


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
