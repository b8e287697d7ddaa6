"""Steps in buffers of fixed address and size, so that a CUDA graph of their launches can be replayed.

A frame has a fixed capacity of tokens, work items and partial results. Unused capacity is filled with items
without queries and merges without partial results, which do nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..common.upload import FixedArrays
from .batch import FULL_REACH, AttentionBatch
from .cuda import (
    GROUP_QUERIES,
    Launch,
    Scores,
    Shape,
    StepTiles,
    Work,
    attend,
    by_size,
    decode_tiles,
    max_splits,
    plan_step,
)
from .cuda_tiles import CHUNK, Tiles
from .plan import COLUMNS

LEVELS = 4
"""A frame has places for three levels of groups and for single rows."""

ANY_LENGTH = np.full(1, np.iinfo(np.int32).max, np.int32)
Arrays = Mapping[str, NDArray[Any]]


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
    def allocate(shape: Shape, tokens: int, tables: torch.Tensor) -> "Scratch":
        """Allocates buffers for frames of up to `tokens` tokens."""
        device = tables.device
        grouped, chunk = (max(1, queries // shape.repeat) for queries in (GROUP_QUERIES, CHUNK))
        results = (grouped + chunk) * max_splits(shape, device) + LEVELS * tokens
        return Scratch(
            tables,
            torch.empty(results, shape.heads, shape.head_dim, device=device),
            torch.empty(results, shape.heads, device=device),
        )


def frame_tiles(shape: Shape, tokens: int, element_size: int) -> list[tuple[Tiles, ...]]:
    """The tiles of each kind of frame for `tokens` tokens: those of single rows, and for items with more
    queries larger ones."""
    small = decode_tiles(shape, (), element_size)
    larger = [
        Tiles.choose(queries, shape.repeat, shape.head_dim, element_size)
        for queries in (GROUP_QUERIES, CHUNK)
    ]
    needed = [*larger[:1], *(larger[1:] if tokens * shape.repeat > larger[0].queries else [])]
    if tokens * shape.repeat <= small.queries:
        return [(small,)]
    return [(small,), *((small, tiles) for tiles in dict.fromkeys(needed) if tiles != small)]


def needed_tiles(batch: AttentionBatch, shape: Shape, element_size: int) -> tuple[Tiles, ...]:
    """The tiles of the frame that a step needs."""
    small, full = decode_tiles(shape, (), element_size), shape._replace(reach=FULL_REACH)
    largest = max(StepTiles.choose(batch, full, element_size), key=lambda tiles: tiles.queries)
    return (small,) if largest.queries <= small.queries else (small, largest)


class FixedPlan:
    """The attention of all layers of one shape in a frame.

    Its arrays belong to the frame; `key` distinguishes their names from those of other shapes.
    """

    def __init__(self, shape: Shape, tokens: int, scratch: Scratch, tiles: Sequence[Tiles], key: int) -> None:
        """tiles: those of small items, then those of large ones if the frame has any"""
        self.shape = shape
        self._tiles = tiles
        self._scratch = scratch
        self._names = [f"items {kind} {key}" for kind in range(len(tiles))]
        self._merges, self._places = f"merges {key}", f"places {key}"
        splits, small_tokens = max_splits(shape, scratch.tables.device), tiles[0].queries // shape.repeat
        most = [LEVELS * tokens, LEVELS * tokens // (small_tokens + 1) + 1]
        self.defaults: Arrays = {
            **{
                name: np.zeros((2 * splits + own, COLUMNS), np.int32)
                for name, own in zip(self._names, most, strict=False)
            },
            self._merges: np.zeros((tokens, 3), np.int32),
            self._places: np.zeros(tokens, np.int32),
        }
        self.tensors: Mapping[str, torch.Tensor] = {}
        """the arrays on the device, by name"""

    def plan(self, batch: AttentionBatch, element_size: int) -> Arrays | None:
        """The step's items and merges, by array; None if their partial results exceed the buffers."""
        tables, starts = batch.device_tables()
        assert tables is self._scratch.tables
        tiles = StepTiles.choose(batch, self.shape, element_size)
        plan = plan_step(batch, starts, self.shape, tiles, tables.device)
        if plan.partials > len(self._scratch.partial):
            return None
        items = np.concatenate([plan.decode, plan.chunks])
        kinds = by_size(items, self._tiles[0], self.shape) if len(self._tiles) > 1 else (items,)
        arrays = {self._merges: plan.merges, self._places: plan.places}
        return {**dict(zip(self._names, kinds, strict=True)), **arrays}

    def run(self, q: torch.Tensor, kv: torch.Tensor, scores: Scores) -> torch.Tensor:
        places, reach = self.tensors[self._places], self.shape.reach
        work = Work(self._scratch.tables, places, self._scratch.partial, self._scratch.partial_sum, reach)
        launches = [
            Launch(tiles, self.tensors[name]) for name, tiles in zip(self._names, self._tiles, strict=True)
        ]
        return attend(work, launches, self.tensors[self._merges], q, kv, scores)


class Frame:
    """Steps of up to `tokens` tokens for a model whose layers have these shapes.

    inputs: more arrays of the step, which the same copy moves to the device, and the values of elements that
    a step does not set
    """

    def __init__(
        self,
        shapes: Sequence[Shape],
        tokens: int,
        scratch: Scratch,
        element_size: int,
        tiles: Sequence[Tiles],
        inputs: Arrays,
    ) -> None:
        self._element_size = element_size
        self._plans = [FixedPlan(shape, tokens, scratch, tiles, key) for key, shape in enumerate(shapes)]
        planned = {name: array for plan in self._plans for name, array in plan.defaults.items()}
        self._arrays = FixedArrays({**inputs, **planned}, scratch.tables.device)
        self.tensors = self._arrays.tensors
        """the arrays on the device, by name"""
        for plan in self._plans:
            plan.tensors = self.tensors
        self.batch = AttentionBatch(
            query_lengths=np.ones(tokens, np.int32),
            kv_lengths=ANY_LENGTH,
            page_tables=(),
            page_size=0,
            device=scratch.tables.device,
            groups=(),
            plans=dict(zip(shapes, self._plans, strict=True)),
        )
        """the batch to pass to the layers in place of the step's own"""

    def load(self, batches: Sequence[AttentionBatch], inputs: Arrays) -> bool:
        """Prepares for a step, given its batch for the layers of each shape. Returns False, without writing
        anything, if the step exceeds the buffers."""
        arrays = dict(inputs)
        for plan, batch in zip(self._plans, batches, strict=True):
            planned = plan.plan(batch, self._element_size)
            if planned is None:
                return False
            arrays.update(planned)
        if not self._arrays.fits(arrays):
            return False
        self._arrays.set(arrays)
        return True
