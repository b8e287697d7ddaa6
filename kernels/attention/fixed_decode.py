"""Decode steps in buffers of fixed address and size, so that a CUDA graph of their launches can be replayed.

A frame has a fixed capacity of rows, work items and partial results. Unused capacity is filled with items
without queries and merges without partial results, which do nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..common.upload import upload
from .batch import AttentionBatch, Group
from .cuda import (
    GROUP_QUERIES,
    Launch,
    Shape,
    Tiles,
    Work,
    attend,
    by_size,
    decode_tiles,
    max_splits,
    plan_decode,
    with_table_offsets,
)
from .plan import COLUMNS

LEVELS = 3
"""A frame has places for two levels of groups and for single rows."""

LARGE_GROUP: Group = (0, GROUP_QUERIES, 0)
ANY_LENGTH = np.full(1, np.iinfo(np.int32).max, np.int32)


@dataclass(frozen=True)
class Scratch:
    """Buffers that all frames of a model share, as only one frame runs at a time."""

    tables: torch.Tensor
    """int32 [page ids]: the joined page tables"""
    partial: torch.Tensor
    """float32 [partial results, heads, head_dim]"""
    partial_sum: torch.Tensor
    """float32 [partial results, heads]"""

    @staticmethod
    def allocate(shape: Shape, rows: int, page_ids: int, device: torch.device) -> "Scratch":
        """Allocates buffers for frames of up to `rows` rows."""
        results = max(1, GROUP_QUERIES // shape.repeat) * max_splits(shape, device) + 2 * LEVELS * rows
        return Scratch(
            torch.zeros(page_ids, dtype=torch.int32, device=device),
            torch.empty(results, shape.heads, shape.head_dim, device=device),
            torch.empty(results, shape.heads, device=device),
        )


class FixedPlan:
    """The attention of all layers of one shape in a frame."""

    def __init__(self, shape: Shape, rows: int, scratch: Scratch, tiles: Sequence[Tiles]) -> None:
        """tiles: those of small items, then those of large ones if the frame has any"""
        device = scratch.tables.device
        self.shape = shape
        most = max_splits(shape, device) + LEVELS * rows
        self._launches = [Launch(each, _unused_items(most, device)) for each in tiles]
        self._merges = torch.zeros(rows, 3, dtype=torch.int32, device=device)
        self._work = Work(scratch.tables, scratch.partial, scratch.partial_sum, shape.window)

    def fill(self, batch: AttentionBatch) -> list[tuple[torch.Tensor, NDArray[np.int32]]] | None:
        """(buffer, values) pairs to write; None if the step exceeds the buffers."""
        groups = batch.groups if self.shape.window is None else ()
        small, large = self._launches[0].tiles, self._launches[-1].tiles
        plan = plan_decode(batch, groups, self.shape, large, self._work.tables.device)
        if plan.partials > len(self._work.partial):
            return None
        kinds = by_size(with_table_offsets(plan, batch), small, self.shape)
        writes: list[tuple[torch.Tensor, NDArray[np.int32]]] = []
        for (_, buffer), items in zip(self._launches, kinds, strict=False):
            if len(items) > len(buffer):
                return None
            values = np.zeros(buffer.shape, np.int32)
            values[: len(items)] = items
            writes.append((buffer, values))
        merges = np.zeros(self._merges.shape, np.int32)
        merges[: len(plan.merges)] = plan.merges
        return [*writes, (self._merges, merges)]

    def run(self, q: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor:
        return attend(self._work, self._launches, self._merges, q, kv, scale)


def _unused_items(count: int, device: torch.device) -> torch.Tensor:
    """Items without queries."""
    return torch.zeros(count, COLUMNS, dtype=torch.int32, device=device)


class Frame:
    """Decode steps of up to `rows` rows for a model whose layers have these shapes.

    large_groups: also launch items with the tiles of large groups; otherwise only with those of single rows,
    for steps without groups or with small ones.
    """

    def __init__(
        self, shapes: Sequence[Shape], rows: int, scratch: Scratch, element_size: int, *, large_groups: bool
    ) -> None:
        kinds: list[list[Group]] = [[], [LARGE_GROUP]] if large_groups else [[]]
        self._scratch = scratch
        self._plans = [
            FixedPlan(shape, rows, scratch, [decode_tiles(shape, groups, element_size) for groups in kinds])
            for shape in shapes
        ]
        self.batch = AttentionBatch(
            query_lengths=np.ones(rows, np.int32),
            kv_lengths=ANY_LENGTH,
            page_tables=(),
            page_size=0,
            device=scratch.tables.device,
            groups=(),
            decode_rows=rows,
            plans=dict(zip(shapes, self._plans, strict=True)),
        )
        """the batch to pass to the layers in place of the step's own"""

    def load(self, batch: AttentionBatch) -> bool:
        """Prepares for a step. Returns False, without writing anything, if the step exceeds the buffers or
        runs faster outside a frame."""
        tables = batch.joined_tables()
        if len(tables) > len(self._scratch.tables) or self._hides_groups(batch):
            return False
        writes = [(self._scratch.tables[: len(tables)], tables)]
        for plan in self._plans:
            filled = plan.fill(batch)
            if filled is None:
                return False
            writes += filled
        moved = upload([array for _, array in writes], self._scratch.tables.device)
        for (buffer, _), values in zip(writes, moved, strict=True):
            buffer.copy_(values)
        return True

    def _hides_groups(self, batch: AttentionBatch) -> bool:
        """Whether a layer's window ignores groups although every row still fits into the window."""
        longest = int(batch.kv_lengths.max())
        windows = [plan.shape.window for plan in self._plans]
        return bool(batch.groups) and any(window is not None and window >= longest for window in windows)


def needs_large_groups(shape: Shape, groups: Sequence[Group], element_size: int) -> bool:
    """Whether a step with these groups needs the larger tiles."""
    return decode_tiles(shape, groups, element_size) != decode_tiles(shape, (), element_size)
