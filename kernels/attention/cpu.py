"""Attention on CPUs: items of many queries in tiles, others key by key."""

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray

from ..common import amx, bfloat16_dots
from ..common.numba_tools import pack_float
from ..common.threads import ParallelKernel, is_recording, thread_count
from ..common.vectors import LANES
from ..pages.cells import CellFormat
from ..pages.segments import Segments
from . import float_tiles, tiles
from . import items as column
from .batch import FULL_REACH, AttentionBatch, Group, Reach, first_keys
from .later_items import SPARE, LaterItems
from .plan import BEGIN, END, Cut, ItemSizes, plan_items
from .runs import Runs

MAX_ITEM_QUERIES = 64
"""Query heads of an item, at most: they share one pass over the keys. Key by key, 16 take up to 1.6 times as
long behind thousands of keys; 128 are up to 1.1 times as fast there, but up to 1.3 times as slow for short
prompts."""

MIN_SPLIT, MIN_SPLIT_OF_MANY = 512, 128
"""Keys below which an item is not split to give work to more threads: MIN_SPLIT for up to FEW_THREADS
threads. Twice as many threads may have half as many keys each, because they also share the merge."""
FEW_THREADS = 16

INVARIANT_SPLIT = 512
"""Keys of an item where results must not depend on the batch: a multiple of both kernels' blocks. Fewer keys
mean more merges, more keys mean idle threads."""

OF_STEP = (
    column.ITEMS,
    column.ITEM_COUNT,
    column.ITEM_RUNS,
    column.RUNS,
    column.PARTIAL_OUT,
    column.PARTIAL_SUM,
    column.REACH,
    column.MERGES,
    column.MERGE_COUNT,
)
"""Arguments that differ between steps with the same numbers of tokens and of output tokens."""

THREADED_BYTES = 200_000
"""Bytes of keys and values from which several threads are faster than one."""


def paged_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    batch: AttentionBatch,
    scale: float,
    reach: Reach,
    batch_invariant: bool,
    outputs_only: bool,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    plan = plan_attention(q, kv, batch, reach, batch_invariant, outputs_only)
    return plan.run(q, kv, scale, softcap, sinks)


def plan_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    batch: AttentionBatch,
    reach: Reach,
    batch_invariant: bool,
    outputs_only: bool,
) -> "CpuAttention":
    """The batch's plan for layers of this shape, made at the first call. Of q, only shape and dtype count."""
    reach = reach.within(int(batch.kv_lengths.max(initial=0)))
    outputs = batch.outputs if outputs_only else None
    shape = (q.shape[1], kv.shape[1], q.shape[2], q.dtype, kv.dtype)
    key = (*shape, reach, batch_invariant, outputs is not None)
    plan = batch.plans.get(key)
    if plan is None and outputs is not None:
        whole = plan_attention(q, kv, batch, reach, batch_invariant, False)
        plan = batch.plans[key] = whole.for_tokens(outputs)
    elif plan is None:
        plan = batch.plans[key] = CpuAttention(batch, q, kv, reach, batch_invariant)
    assert isinstance(plan, CpuAttention)
    return plan


def _has_tiles(dtype: torch.dtype, head_dim: int) -> bool:
    return dtype == torch.bfloat16 and head_dim % LANES == 0 and bfloat16_dots.available()


class CpuAttention:
    """The attention of a step for all layers of one shape: its plan and its buffers."""

    def __init__(
        self,
        batch: AttentionBatch,
        q: torch.Tensor,
        kv: torch.Tensor,
        reach: Reach,
        batch_invariant: bool,
    ) -> None:
        heads, head_dim = q.shape[1:]
        kv_heads = kv.shape[1]
        cells = CellFormat(kv.dtype)
        assert kv.dtype in (q.dtype, torch.int8) and kv.shape[4] == cells.elements(head_dim)
        repeat = heads // kv_heads
        self._invariant = batch_invariant
        tiled = _has_tiles(q.dtype, head_dim)
        self._by_amx = tiled and amx.available() and head_dim % amx.SIDE == 0
        has_float_tiles = not (tiled or batch_invariant) and head_dim % LANES == 0
        self._item_queries = max(repeat, tiles.AMX_QUERIES if self._by_amx else MAX_ITEM_QUERIES)
        self._item_tokens, self._kv_heads = self._item_queries // repeat, kv_heads
        self._reach, lengths = reach, batch.kv_lengths.astype(np.int64)
        groups, cut = (
            self._choose_groups(batch.groups),
            self._choose_cut(len(lengths), int(lengths.max(initial=1))),
        )
        every_row = np.ones(len(lengths), np.bool_)
        items = self._items = plan_items(batch, groups, every_row, self._item_tokens, cut, reach)
        self._segments, self._page_size = Segments.of(kv), batch.page_size
        self._runs = Runs.find(batch.page_tables, lengths, batch.page_size, self._segments)
        self._capacities = lengths
        """[rows]: the keys that the runs have"""
        self._item_runs = self._runs.of_items(self._items.items)
        self._later = LaterItems()
        self._partial = torch.empty(self._items.partials, heads, head_dim)
        self._partial_sum = torch.empty(self._items.partials, heads)
        keys_read = int((self._items.items[:, END] - self._items.items[:, BEGIN]).sum())
        threaded = keys_read * kv_heads * 2 * cells.bytes(head_dim) >= THREADED_BYTES
        self._threads = thread_count() if threaded else 1
        if tiled:
            self._attend = tiles.KERNELS[kv.dtype]
            self._min_tiled = tiles.MIN_AMX_QUERIES if self._by_amx else tiles.MIN_QUERIES
        else:
            kernels = float_tiles.KERNELS if has_float_tiles else column.KERNELS
            self._attend = kernels[q.dtype, kv.dtype]
            self._min_tiled = float_tiles.MIN_QUERIES
        self._merge = column.MERGE_KERNELS[q.dtype]
        self._arguments = self._first_arguments(kv, repeat, head_dim)
        self._set_items(items.items, items.merges, self._item_runs)
        self._set_partials()

    def _choose_groups(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """Those of the groups whose keys are read once."""
        if not groups or self._reach != FULL_REACH:
            return ()  # a window hides a different part of the shared keys from each row, so few are shared
        return _whole_items(groups) if self._invariant else groups

    def _choose_cut(self, rows: int, longest: int) -> Cut:
        return Cut(_split(self._invariant, self._kv_heads, rows, longest), aligned=self._invariant)

    def _first_arguments(self, kv: torch.Tensor, repeat: int, head_dim: int) -> list[int]:
        arguments = [0] * column.ARGUMENTS
        arguments[column.RUNS] = self._runs.table.ctypes.data
        arguments[column.REACH] = self._reach.code
        arguments[column.KV_HEADS] = kv.shape[1]
        arguments[column.REPEAT] = repeat
        arguments[column.HEAD_DIM] = head_dim
        arguments[column.CELL] = kv.shape[4]
        arguments[column.HEAD_CELLS] = self._segments.head
        arguments[column.MAX_QUERIES] = self._item_queries
        arguments[column.MIN_TILED] = 0 if self._invariant else self._min_tiled
        arguments[column.BY_AMX] = self._by_amx
        arguments[column.THREADS] = thread_count()
        return arguments

    def _set_items(self, items: np.ndarray, merges: np.ndarray, item_runs: np.ndarray) -> None:
        arguments = self._arguments
        arguments[column.ITEMS], arguments[column.ITEM_COUNT] = items.ctypes.data, len(items)
        arguments[column.MERGES], arguments[column.MERGE_COUNT] = merges.ctypes.data, len(merges)
        arguments[column.ITEM_RUNS] = item_runs.ctypes.data

    def _set_partials(self) -> None:
        self._arguments[column.PARTIAL_OUT] = self._partial.data_ptr()
        self._arguments[column.PARTIAL_SUM] = self._partial_sum.data_ptr()

    @property
    def kernels(self) -> set[ParallelKernel]:
        return {self._attend, self._merge}

    def step_arguments(self) -> list[int]:
        """The arguments `OF_STEP` of `kernels`."""
        return [self._arguments[index] for index in OF_STEP]

    def for_tokens(self, tokens: NDArray[np.int64]) -> "CpuAttention":
        """A copy of this plan that computes only the items with at least one of these query tokens."""
        plan = self.copy()
        is_kept, plan._items = self._items.having(tokens)
        plan._item_runs = self._item_runs[is_kept]
        plan._set_items(plan._items.items, plan._items.merges, plan._item_runs)
        return plan

    def copy(self) -> "CpuAttention":
        """A copy that may plan other steps."""
        plan = copy(self)
        plan._arguments, plan._later = list(self._arguments), LaterItems()
        return plan

    def lacks_pages(self, lengths: NDArray[np.int64]) -> bool:
        """Whether rows of these lengths need `set_pages` before `plan_step`."""
        return bool((self._capacities < lengths).any())

    def set_pages(self, page_tables: Sequence[NDArray[np.int32]]) -> None:
        """Sets the rows' pages, of which all may have keys."""
        self._capacities = np.array([len(table) * self._page_size for table in page_tables], np.int64)
        self._runs = Runs.find(page_tables, self._capacities, self._page_size, self._segments)
        self._arguments[column.RUNS] = self._runs.table.ctypes.data

    def plan_step(
        self,
        queries: NDArray[np.int64],
        lengths: NDArray[np.int64],
        longest: int,
        groups: tuple[Group, ...],
        reach: Reach,
    ) -> None:
        """Plans a later step of the same rows, as a new plan would.

        queries, lengths: [rows], of query tokens and of keys. longest: of `lengths`. reach: the layers' own
        """
        self._reach = reach.within(longest)
        sizes = ItemSizes.of(self._item_tokens, self._choose_cut(len(lengths), longest), self._reach)
        later, items = self._later, self._later.items
        chosen = self._choose_groups(groups)
        made, merged, partials = later.plan(queries, lengths, chosen, sizes, self._runs)
        if partials > len(self._partial):
            self._partial = torch.empty(SPARE * partials, *self._partial.shape[1:])
            self._partial_sum = torch.empty(SPARE * partials, *self._partial_sum.shape[1:])
            self._set_partials()
        if later.items is not items:
            self._set_items(later.items, later.merges, later.item_runs)
        arguments = self._arguments
        arguments[column.ITEM_COUNT], arguments[column.MERGE_COUNT] = made, merged
        arguments[column.REACH] = self._reach.code

    def run(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert scale > 0, "tiles look for the largest score before they scale"
        assert sinks is None or (sinks.dtype == torch.float32 and sinks.is_contiguous())
        arguments = self._arguments
        arguments[column.SCALE] = pack_float(scale)
        arguments[column.SOFTCAP] = pack_float(softcap or 0.0)
        arguments[column.SINKS] = 0 if sinks is None else sinks.data_ptr()
        out = torch.empty(q.shape, dtype=q.dtype)
        if len(self._items.items):
            self._run_items(q, kv, out)
        return out

    def _run_items(self, q: torch.Tensor, kv: torch.Tensor, out: torch.Tensor) -> None:
        arguments = self._arguments
        arguments[column.Q] = q.data_ptr()
        arguments[column.Q_STRIDE] = q.stride(0)
        arguments[column.KEYS] = kv.data_ptr()
        arguments[column.VALUES] = kv.data_ptr() + kv.stride(0) * kv.element_size()
        arguments[column.OUT] = out.data_ptr()
        self._attend.run(arguments[1:], self._threads)
        if len(self._items.merges) or is_recording():
            self._merge.run(arguments[1:], self._threads)


def _whole_items(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """The groups, shortened to whole items, so that grouped rows are split like other rows."""
    cut = [(first, count, keys // INVARIANT_SPLIT * INVARIANT_SPLIT) for first, count, keys in groups]
    begins = [begin // INVARIANT_SPLIT * INVARIANT_SPLIT for begin in first_keys(groups)]
    return tuple(group for group, begin in zip(cut, begins, strict=True) if group[2] > begin)


def _split(batch_invariant: bool, kv_heads: int, rows: int, longest: int) -> int:
    """Keys of each item. Rows are split if there are too few rows and heads to give all threads work.

    longest: tokens of the longest row
    """
    if batch_invariant:
        return INVARIANT_SPLIT
    threads = thread_count()
    pieces = -(-2 * threads // (kv_heads * max(1, rows)))
    fewest = max(MIN_SPLIT_OF_MANY, MIN_SPLIT * FEW_THREADS // max(FEW_THREADS, threads))
    return max(fewest, -(-longest // pieces))
