"""The rows of a step as attention needs them: computed once on the host and shared by all layers."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..common.upload import upload

Group = tuple[int, int, int]
"""(first row, row count, shared tokens): rows whose first pages are the same"""


class Reach(NamedTuple):
    """The earlier tokens that a token sees: all, or those of a window or of a chunk."""

    window: int | None = None
    """token i sees tokens (i - window, i]"""
    chunk: int | None = None
    """token i sees the tokens since the last position that is a multiple of `chunk`"""

    def within(self, longest: int) -> "Reach":
        """The reach of tokens in rows of at most `longest` tokens: full if it hides none of them."""
        return FULL_REACH if self.limit is None or self.limit >= longest else self

    @property
    def limit(self) -> int | None:
        """The most tokens that a token sees; rows of so many tokens have no hidden ones."""
        return self.chunk if self.window is None else self.window

    @property
    def code(self) -> int:
        """For kernels: the tokens of the window, the negative ones of the chunk, or `NO_WINDOW`."""
        assert self.window is None or self.chunk is None, "a layer has windows or chunks"
        return -self.chunk if self.chunk is not None else NO_WINDOW if self.window is None else self.window


FULL_REACH = Reach()
NO_WINDOW = 1 << 30
"""More than any position."""


def first_keys(groups: Sequence[Group]) -> list[int]:
    """The first key of each group that no outer group shares. groups: see `AttentionBatch.build`."""
    keys: list[int] = []
    outer: list[Group] = []
    for group in groups:
        while outer and group[0] >= outer[-1][0] + outer[-1][1]:
            outer.pop()
        keys.append(outer[-1][2] if outer else 0)
        assert not outer or group[0] + group[1] <= outer[-1][0] + outer[-1][1]
        outer.append(group)
    return keys


class DeviceTables(NamedTuple):
    """Page tables on the device, int32 [page ids], and where the table of each row begins, int64 [rows]."""

    tables: torch.Tensor
    starts: np.ndarray


@dataclass(frozen=True)
class AttentionBatch:
    """Rows of a step: decode rows (one query token) and chunks, in any order.

    The query tokens of row r are the last `query_lengths[r]` of its `kv_lengths[r]` tokens, and their keys
    and values are already in the cache. Token t of row r is in page `page_tables[r][t // page_size]`.
    """

    query_lengths: np.ndarray
    """int32 [rows], the tokens of each row in this step"""
    kv_lengths: np.ndarray
    """int32 [rows], the tokens of each row so far, including those of this step"""
    page_tables: tuple[np.ndarray, ...]
    """int32, one array for each row; none if a GPU has the tables already"""
    page_size: int
    device: torch.device
    groups: tuple[Group, ...]
    kept_tables: DeviceTables | None = None
    """page tables that the device has already"""
    outputs: NDArray[np.int64] | None = None
    """int64, the query tokens whose hidden states the forward pass returns. None: it returns those of all
    query tokens, in their order"""
    plans: dict[Hashable, object] = field(default_factory=dict, compare=False, repr=False)
    """tables that implementations derive from the batch, built by the first layer of each shape"""

    @staticmethod
    def build(
        query_lengths: Sequence[int] | NDArray[np.int64],
        kv_lengths: Sequence[int] | NDArray[np.int64],
        page_tables: Sequence[np.ndarray],
        page_size: int,
        device: torch.device,
        groups: Sequence[Group] = (),
        kept_tables: DeviceTables | None = None,
        outputs: NDArray[np.int64] | None = None,
    ) -> "AttentionBatch":
        """Describe a step.

        Each group is a range of rows; groups are sorted by their first rows. The tokens that the rows of a
        group share fill whole pages and come before the rows' query tokens. Two groups are disjoint, or the
        first one contains all rows of the second, which shares more tokens. Shared pages are read once for a
        group, and the results are merged by log-sum-exp. outputs: see `AttentionBatch.outputs`.
        """
        queries = np.asarray(query_lengths, dtype=np.int32)
        lengths = np.asarray(kv_lengths, dtype=np.int32)
        assert len(queries) == len(lengths) and (kept_tables or len(page_tables) == len(lengths))
        assert bool(np.all(queries >= 1)) and bool(np.all(lengths >= queries))
        for (first, count, shared), begin in zip(groups, first_keys(groups), strict=True):
            rows = slice(first, first + count)
            assert shared % page_size == 0 and first >= 0 and rows.stop <= len(lengths)
            assert begin < shared <= int((lengths[rows] - queries[rows]).min())
        return AttentionBatch(
            query_lengths=queries,
            kv_lengths=lengths,
            page_tables=tuple(np.asarray(table, dtype=np.int32) for table in page_tables),
            page_size=page_size,
            device=device,
            groups=tuple(groups),
            kept_tables=kept_tables,
            outputs=outputs,
        )

    def device_tables(self) -> DeviceTables:
        """The page tables on the device; copies them there if it lacks them."""
        if self.kept_tables is not None:
            return self.kept_tables
        (tables,) = upload([self.joined_tables()], self.device)
        return DeviceTables(tables, np.concatenate(([0], np.cumsum(self.page_counts())))[:-1])

    def page_counts(self) -> np.ndarray:
        """The number of pages of each row, int32 [rows]."""
        counts: np.ndarray = -(-self.kv_lengths // self.page_size)
        return counts

    def joined_tables(self) -> np.ndarray:
        """The used parts of all page tables, concatenated: int32 [sum of `page_counts`]."""
        counts = self.page_counts().tolist()
        used = [table[:count] for table, count in zip(self.page_tables, counts, strict=True)]
        return np.concatenate(used) if used else np.empty(0, np.int32)

    def is_chunk(self) -> NDArray[np.bool_]:
        """Whether each row is a chunk, which has more than one query token."""
        longer: NDArray[np.bool_] = self.query_lengths > 1
        return longer

    def first_tokens(self) -> NDArray[np.int64]:
        """How many query tokens the rows before each row have, and at the end all rows: int64 [rows + 1]."""
        return np.concatenate([[0], np.cumsum(self.query_lengths, dtype=np.int64)])

    @property
    def tokens(self) -> int:
        """The number of query tokens of all rows."""
        return int(self.query_lengths.sum())
