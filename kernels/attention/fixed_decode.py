"""Decode steps in buffers of fixed address and size, so that a CUDA graph of their launches can be replayed.

A frame has a fixed capacity of rows, work items and partial results. Unused capacity is filled with items
without queries and merges without partial results, which do nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..common.upload import FixedArrays
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
    with_table_starts,
)
from .plan import COLUMNS

LEVELS = 3
"""A frame has places for two levels of groups and for single rows."""

ITEM_ARRAYS = ("small items", "large items")
"""names of the arrays of work items, by the size of their tiles"""
MERGES = "merges"
LARGE_GROUP: Group = (0, GROUP_QUERIES, 0)
ANY_LENGTH = np.full(1, np.iinfo(np.int32).max, np.int32)


@dataclass(frozen=True)
class Scratch:
    """Buffers that all frames of a model share, as only one frame runs at a time."""

    tables: torch.Tensor
    """int32 [page ids]: the page tables of all slots"""
    partial: torch.Tensor
    """float32 [partial results, heads, head_dim]"""
    partial_sum: torch.Tensor
    """float32 [partial results, heads]"""

    @staticmethod
    def allocate(shape: Shape, rows: int, tables: torch.Tensor) -> "Scratch":
        """Allocates buffers for frames of up to `rows` rows."""
        device = tables.device
        results = max(1, GROUP_QUERIES // shape.repeat) * max_splits(shape, device) + 2 * LEVELS * rows
        return Scratch(
            tables,
            torch.empty(results, shape.heads, shape.head_dim, device=device),
            torch.empty(results, shape.heads, device=device),
        )


class FixedPlan:
    """The attention of all layers of one shape in a frame."""

    def __init__(self, shape: Shape, rows: int, scratch: Scratch, tiles: Sequence[Tiles]) -> None:
        """tiles: those of small items, then those of large ones if the frame has any"""
        device = scratch.tables.device
        self.shape = shape
        self._tiles = tiles
        most = max_splits(shape, device) + LEVELS * rows
        items = {
            name: np.zeros((most, COLUMNS), np.int32) for name, _ in zip(ITEM_ARRAYS, tiles, strict=False)
        }
        self._arrays = FixedArrays({**items, MERGES: np.zeros((rows, 3), np.int32)}, device)
        self._work = Work(scratch.tables, scratch.partial, scratch.partial_sum, shape.window)

    def plan(self, batch: AttentionBatch) -> dict[str, NDArray[np.int64]] | None:
        """The step's items and merges, by array; None if the step exceeds the buffers."""
        groups = batch.groups if self.shape.window is None else ()
        tables, starts = batch.device_tables()
        assert tables is self._work.tables
        plan = plan_decode(batch, groups, self.shape, self._tiles[-1], tables.device)
        small_and_large = by_size(with_table_starts(plan, starts), self._tiles[0], self.shape)
        arrays = {**dict(zip(ITEM_ARRAYS, small_and_large, strict=True)), MERGES: plan.merges}
        fits = plan.partials <= len(self._work.partial) and self._arrays.fits(arrays)
        return arrays if fits else None

    def set(self, arrays: Mapping[str, NDArray[np.int64]]) -> None:
        self._arrays.set(arrays)

    def run(self, q: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor:
        tensors = self._arrays.tensors
        launches = [Launch(each, tensors[name]) for name, each in zip(ITEM_ARRAYS, self._tiles, strict=False)]
        return attend(self._work, launches, tensors[MERGES], q, kv, scale)


class Frame:
    """Decode steps of up to `rows` rows for a model whose layers have these shapes.

    large_groups: also launch items with the tiles of large groups; otherwise only with those of single rows,
    for steps without groups or with small ones.
    """

    def __init__(
        self, shapes: Sequence[Shape], rows: int, scratch: Scratch, element_size: int, *, large_groups: bool
    ) -> None:
        typical: list[list[Group]] = [[], [LARGE_GROUP]] if large_groups else [[]]
        self._plans = [
            FixedPlan(shape, rows, scratch, [decode_tiles(shape, groups, element_size) for groups in typical])
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
        if self._wastes_groups(batch):
            return False
        arrays = [plan.plan(batch) for plan in self._plans]
        if any(each is None for each in arrays):
            return False
        for plan, each in zip(self._plans, arrays, strict=True):
            plan.set(each or {})
        return True

    def _wastes_groups(self, batch: AttentionBatch) -> bool:
        """Whether a layer with a window reads no groups, although no row is longer than the window yet.

        Outside a frame such a layer reads the groups' shared pages once.
        """
        longest = int(batch.kv_lengths.max())
        windows = [plan.shape.window for plan in self._plans]
        return bool(batch.groups) and any(window is not None and window >= longest for window in windows)


def needs_large_groups(shape: Shape, groups: Sequence[Group], element_size: int) -> bool:
    """Whether a step with these groups needs the larger tiles."""
    return decode_tiles(shape, groups, element_size) != decode_tiles(shape, (), element_size)
