"""Attention over pages on CUDA: flash attention (Dao 2023) for chunks, split-KV and tree decode for the rest.

One kernel runs all work items (see `plan`). Items with few, more and most queries are launched apart, each
with tiles of its own size: the largest tiles take so many registers that fewer programs run at a time. The
query heads of a KV head and the rows of a group form one block of queries, which reads its keys once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from ..common.upload import upload
from ..pages.cells import FP8, CellFormat, codes_and_scales
from .batch import FULL_REACH, AttentionBatch, Group, Reach, first_keys
from .cuda_kernels import attend_kernel, merge_kernel
from .cuda_tiles import GROUP, Tiles, programs_of_processor, stages
from .plan import COLUMNS, NOTHING, PARTIAL, ROW, TOKEN, TOKENS, Cut, ItemPlan, best_split, plan_items

LOG2_E = 1.4426950408889634
MIN_SPLIT = 128
"""Keys below which an item is not split to give work to more programs."""

UNIT = 64
"""The keys of an item are a multiple of this number, if there are more."""

ITEM_COST = 128
"""Keys that could be read in the time that an item takes besides its keys: an estimate."""

PROGRAMS_FOR_EACH_PROCESSOR = 4
"""Programs for each multiprocessor into which items are split at most, beyond one program an item."""

MERGED_AT_ONCE, MERGING_WARPS = 8, 1
"""Partial results that a program reads at the same time. One warp ends sooner than several, which would wait
for each other."""

GROUP_QUERIES = GROUP
"""The most query heads of one KV head that a work item computes for the decode rows of a group."""


class Plan(Protocol):
    """The attention of a step for all layers of one shape."""

    def run(self, q: torch.Tensor, kv: torch.Tensor, scores: "Scores") -> torch.Tensor: ...


class Shape(NamedTuple):
    """The sizes that all layers of one plan have."""

    heads: int
    kv_heads: int
    head_dim: int
    reach: Reach

    @property
    def repeat(self) -> int:
        """Query heads for each KV head."""
        return self.heads // self.kv_heads


class Scores(NamedTuple):
    """How the products of queries and keys become scores; see `attention.paged_attention`."""

    scale: float
    softcap: float | None
    sinks: torch.Tensor | None


def paged_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    reach: Reach = FULL_REACH,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    reach = reach.within(int(batch.kv_lengths.max(initial=0)))
    shape = Shape(q.shape[1], kv.shape[1], q.shape[2], reach)
    plan = cast(Plan | None, batch.plans.get(shape))
    if plan is None:
        batch.plans[shape] = plan = BatchPlan(batch, shape, q.element_size(), q.device)
    return plan.run(q, kv, Scores(scale, softcap, sinks))


class Launch(NamedTuple):
    """Items of one kind on the device, int32 [items, COLUMNS]."""

    tiles: Tiles
    items: torch.Tensor


@dataclass(frozen=True)
class Work:
    """The page tables that the items of a step read, and the buffers of their partial results."""

    tables: torch.Tensor
    places: torch.Tensor
    """int32 [query tokens]: see `StepItems`"""
    partial: torch.Tensor
    partial_sum: torch.Tensor
    reach: Reach


class StepItems(NamedTuple):
    """The work items of a step, as in `plan` except for two columns.

    `ROW` is where the row's page table begins in the joined tables. `PARTIAL`, unless it is -1, is the item's
    number among the partial results of each of its query tokens. These follow one another without gaps, and
    tokens of a group may have different numbers of them.
    """

    decode: NDArray[np.int64]
    chunks: NDArray[np.int64]
    """items of chunks, and of rows that are in a group with one"""
    merges: NDArray[np.int64]
    """[merges, 3]: query token, first partial result, how many"""
    places: NDArray[np.int64]
    """[query tokens]: the first partial result of each, if it has any"""
    partials: int

    @staticmethod
    def of(decode: ItemPlan, chunks: ItemPlan, table_starts: NDArray[np.int64], tokens: int) -> "StepItems":
        merges = np.concatenate([decode.merges, chunks.merges])
        ends = np.cumsum(merges[:, 2])
        merges[:, 1] = ends - merges[:, 2]
        places = np.zeros(tokens, np.int64)
        places[merges[:, 0]] = merges[:, 1]
        partials = int(ends[-1]) if len(ends) else 0
        of_decode, of_chunks = (_place(plan, table_starts, tokens) for plan in (decode, chunks))
        return StepItems(of_decode, of_chunks, merges, places, partials)


class StepTiles(NamedTuple):
    """The tiles for the items of a step with the most queries."""

    decode: Tiles
    chunks: Tiles

    @staticmethod
    def choose(batch: AttentionBatch, shape: Shape, element_size: int) -> "StepTiles":
        parts = _apart(batch, visible_groups(batch, shape.reach))
        longest = max([int(batch.query_lengths.max(initial=1)), *_group_tokens(batch, parts.of_chunks)])
        chunks = Tiles.choose(longest * shape.repeat, shape.repeat, shape.head_dim, element_size)
        return StepTiles(decode_tiles(shape, parts.of_decode, element_size), chunks)


class BatchPlan:
    """A plan for one step: its items on the device, and buffers for its layers."""

    def __init__(self, batch: AttentionBatch, shape: Shape, element_size: int, device: torch.device) -> None:
        small, tiles = decode_tiles(shape, (), element_size), StepTiles.choose(batch, shape, element_size)
        tables, starts = batch.device_tables()
        plan = plan_step(batch, starts, shape, tiles, device)
        (single, grouped), (few, chunks) = (
            by_size(items, small, shape) for items in (plan.decode, plan.chunks)
        )
        arrays = [np.concatenate([single, few]), grouped, chunks, plan.merges, plan.places]
        *items, self._merges, places = upload([array.astype(np.int32) for array in arrays], device)
        self._launches = [Launch(*each) for each in zip((small, *tiles), items, strict=True)]
        partial = torch.empty(plan.partials, shape.heads, shape.head_dim, device=device)
        partial_sum = torch.empty(plan.partials, shape.heads, device=device)
        self._work = Work(tables, places, partial, partial_sum, shape.reach)

    def run(self, q: torch.Tensor, kv: torch.Tensor, scores: Scores) -> torch.Tensor:
        return attend(self._work, self._launches, self._merges, q, kv, scores)


def plan_step(
    batch: AttentionBatch,
    table_starts: NDArray[np.int64],
    shape: Shape,
    tiles: StepTiles,
    device: torch.device,
) -> StepItems:
    """The items of all rows. table_starts: where the page table of each row begins."""
    parts = _apart(batch, visible_groups(batch, shape.reach))
    decode = plan_rows(batch, ~parts.rows, parts.of_decode, shape, tiles.decode, device)
    chunks = plan_rows(batch, parts.rows, parts.of_chunks, shape, tiles.chunks, device)
    return StepItems.of(decode, chunks, table_starts, batch.tokens)


def visible_groups(batch: AttentionBatch, reach: Reach) -> tuple[Group, ...]:
    """The groups whose rows all see the shared keys."""
    if reach.limit is None:
        return batch.groups
    return tuple(
        (first, count, shared)
        for first, count, shared in batch.groups
        if int(batch.kv_lengths[first : first + count].max()) <= reach.limit
    )


class _Parts(NamedTuple):
    """A step's rows in two parts, which are planned with tiles of different sizes."""

    rows: NDArray[np.bool_]
    """chunks, and rows that are in a group with one"""
    of_chunks: tuple[Group, ...]
    """the groups of `rows`"""
    of_decode: tuple[Group, ...]
    """the groups of the other rows"""


def _apart(batch: AttentionBatch, groups: tuple[Group, ...]) -> _Parts:
    rows = batch.is_chunk()
    if not rows.any():
        return _Parts(rows, (), groups)
    for first, count, _ in groups:
        rows[first : first + count] |= rows[first : first + count].any()
    in_rows = [bool(rows[first]) for first, _, _ in groups]
    return _Parts(
        rows,
        tuple(group for group, chosen in zip(groups, in_rows, strict=True) if chosen),
        tuple(group for group, chosen in zip(groups, in_rows, strict=True) if not chosen),
    )


def _group_tokens(batch: AttentionBatch, groups: Sequence[Group]) -> list[int]:
    """The query tokens of each group."""
    if not groups:
        return []
    tokens = batch.first_tokens().tolist()
    return [tokens[first + count] - tokens[first] for first, count, _ in groups]


def decode_tiles(shape: Shape, groups: Sequence[Group], element_size: int) -> Tiles:
    """The tiles for single rows and for the rows of `groups`."""
    most = min(GROUP_QUERIES, max((count * shape.repeat for _, count, _ in groups), default=1))
    return Tiles.choose(max(shape.repeat, most), shape.repeat, shape.head_dim, element_size)


def plan_rows(
    batch: AttentionBatch,
    rows: NDArray[np.bool_],
    groups: tuple[Group, ...],
    shape: Shape,
    tiles: Tiles,
    device: torch.device,
) -> ItemPlan:
    """Items for some of the rows. groups: those of these rows"""
    if not rows.any():
        return NOTHING
    together = max(1, tiles.queries // shape.repeat)
    keys = keys_to_read(batch, rows, groups, together, shape.reach)
    return plan_items(batch, groups, rows, together, _cut(keys, shape, tiles, device), shape.reach)


def keys_to_read(
    batch: AttentionBatch,
    rows: NDArray[np.bool_],
    groups: tuple[Group, ...],
    together: int,
    reach: Reach,
) -> NDArray[np.int64]:
    """The keys of each item of `rows` before items are split, or more. `together` query tokens share one."""
    keys = batch.kv_lengths.astype(np.int64)
    if reach.limit is not None:
        keys = np.minimum(keys, reach.limit - 1 + np.minimum(batch.query_lengths, together))
    shared: list[int] = []
    for (first, count, end), begin, tokens in zip(
        groups, first_keys(groups), _group_tokens(batch, groups), strict=True
    ):
        keys[first : first + count] -= end - begin
        shared += [end - begin] * -(-tokens // together)
    blocks = -(-batch.query_lengths[rows] // together)
    return np.concatenate([keys[rows].repeat(blocks), np.array(shared, np.int64)])


def _cut(keys: NDArray[np.int64], shape: Shape, tiles: Tiles, device: torch.device) -> Cut:
    """Splits items so that the programs take as few turns, of as few keys, as possible."""
    at_a_time = programs_at_a_time(tiles, shape.head_dim, device)
    return Cut(
        best_split(keys, max_splits(shape, device), shape.kv_heads, at_a_time, MIN_SPLIT, UNIT, ITEM_COST)
    )


def by_size(
    items: NDArray[np.int64], small: Tiles, shape: Shape
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The items whose queries fit into the tiles `small`, and the others."""
    fits = items[:, TOKENS] * shape.repeat <= small.queries
    return items[fits], items[~fits]


def merged_tokens(shape: Shape, cell_bytes: int) -> float:
    """How many tokens of one row a layer reads in the time of one more partial result: writing and reading
    it, and the fixed cost of the group's items."""
    result = 2 * torch.float32.itemsize * shape.heads * (shape.head_dim + 1)
    token = 2 * shape.kv_heads * cell_bytes
    return result / token + ITEM_COST * shape.repeat / GROUP_QUERIES


def max_splits(shape: Shape, device: torch.device) -> int:
    """The most items in a launch, beyond one for each row, group or block of a chunk."""
    return -(-processors(device) * PROGRAMS_FOR_EACH_PROCESSOR // shape.kv_heads)


def programs_at_a_time(tiles: Tiles, head_dim: int, device: torch.device) -> int:
    """How many programs run at the same time."""
    return processors(device) * programs_of_processor(tiles, head_dim)


def processors(device: torch.device) -> int:
    """Multiprocessors of the GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _place(plan: ItemPlan, table_starts: NDArray[np.int64], tokens: int) -> NDArray[np.int64]:
    """The items as `StepItems` has them."""
    first = np.zeros(tokens, np.int64)
    first[plan.merges[:, 0]] = plan.merges[:, 1]
    items = plan.items.copy()
    items[:, ROW] = table_starts[items[:, ROW]]
    items[:, PARTIAL] = np.where(items[:, PARTIAL] < 0, -1, items[:, PARTIAL] - first[items[:, TOKEN]])
    return items


def attend(
    work: Work,
    launches: Sequence[Launch],
    merges: torch.Tensor,
    q: torch.Tensor,
    kv: torch.Tensor,
    scores: Scores,
) -> torch.Tensor:
    """Runs all items and merges their partial results.

    merges: int32 [merges, 3]: query token, first partial result, how many
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for tiles, items in launches:
        if len(items):
            _run_items(work, tiles, items, q, kv, out, scores)
    if len(merges):
        heads, head_dim = out.shape[1:]
        merge_kernel[(len(merges), heads)](
            work.partial,
            work.partial_sum,
            merges,
            out if scores.sinks is None else scores.sinks,
            out,
            SINKS=scores.sinks is not None,
            HEADS=heads,
            HEAD_DIM=head_dim,
            BLOCK_DIM=triton.next_power_of_2(head_dim),
            BLOCK_PARTS=MERGED_AT_ONCE,
            num_warps=MERGING_WARPS,
        )
    return out


def _run_items(
    work: Work,
    tiles: Tiles,
    items: torch.Tensor,
    q: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    scores: Scores,
) -> None:
    _, kv_heads, pages, page_size, cell = kv.shape
    cells, head_dim = CellFormat(kv.dtype), q.shape[2]
    assert kv.is_contiguous() and q.stride(1) == head_dim and q.stride(2) == 1
    assert cell == cells.elements(head_dim)
    codes, scales = codes_and_scales(kv)
    tiles = tiles.of_scaled_cells() if cells.is_scaled else tiles
    cap = scores.softcap
    attend_kernel[(len(items) * kv_heads,)](
        q,
        codes,
        scales,
        out,
        work.partial,
        work.partial_sum,
        items,
        work.tables,
        work.places,
        out if scores.sinks is None else scores.sinks,
        q.stride(0),
        pages * page_size,
        scores.scale * LOG2_E if cap is None else scores.scale / cap,
        (cap or 0.0) * LOG2_E,
        abs(work.reach.code),
        KV_HEADS=kv_heads,
        REPEAT=q.shape[1] // kv_heads,
        HEAD_DIM=head_dim,
        CELL=cell,
        PAGE_SIZE=page_size,
        BLOCK_QUERIES=tiles.queries,
        BLOCK_KEYS=tiles.keys,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        COLUMNS=COLUMNS,
        SCALED=cells.is_scaled,
        FP8=kv.dtype == FP8,
        WINDOW=work.reach.window is not None,
        CHUNK=work.reach.chunk is not None,
        SOFTCAP=cap is not None,
        SINKS=scores.sinks is not None,
        num_warps=tiles.warps,
        num_stages=stages(head_dim),
    )
