# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Attention over pages on CUDA: flash attention (Dao 2023) for chunks, split-KV and tree decode for the rest.

One kernel runs all work items (see `plan`); chunks and decode rows differ in its compile-time constants. The
query heads of a KV head and the rows of a group form one block of queries, which reads its keys once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from ..common.upload import upload
from .batch import AttentionBatch, Group, first_keys
from .plan import COLUMNS, ROW, Cut, ItemPlan, Share, plan_items

LOG2_E = 1.4426950408889634
MIN_SPLIT = 256
"""Keys below which a decode item is not split to give work to more programs."""

NO_SPLIT = 1 << 28
"""More keys than any row has."""

PROGRAMS_FOR_EACH_PROCESSOR = 4

GROUP_QUERIES = 64
"""Query heads for each KV head in the largest item of a group."""


@triton.jit
def _attend_block(
    query, kv, table, keys_at, values_at, start, low, high, total, largest, summed, scale_log2,
    HEAD_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """One turn of the online softmax over keys from `start`; query j sees keys [low[j], high[j])."""
    key = start + tl.arange(0, BLOCK_KEYS)
    dim = tl.arange(0, BLOCK_DIM)
    if MASKED:
        exists = key < tl.max(high, axis=0)
        page = tl.load(table + key // PAGE_SIZE, mask=exists, other=0)
    else:
        exists = tl.full([BLOCK_KEYS], 1, tl.int1)
        page = tl.load(table + key // PAGE_SIZE)
    slot = page.to(tl.int64) * PAGE_SIZE + key % PAGE_SIZE
    offset = slot[:, None] * HEAD_DIM + dim[None, :]
    if MASKED or HEAD_DIM != BLOCK_DIM:
        inside = exists[:, None] & (dim < HEAD_DIM)[None, :]
        keys = tl.load(keys_at + offset, mask=inside, other=0.0)
        values = tl.load(values_at + offset, mask=inside, other=0.0)
    else:
        keys = tl.load(keys_at + offset)
        values = tl.load(values_at + offset)
    score = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale_log2
    if MASKED:
        visible = (key[None, :] >= low[:, None]) & (key[None, :] < high[:, None])
        score = tl.where(visible, score, float("-inf"))
    highest = tl.maximum(largest, tl.max(score, axis=1))
    correction = tl.exp2(largest - highest)
    weight = tl.exp2(score - highest[:, None])
    summed = summed * correction + tl.sum(weight, axis=1)
    total = total * correction[:, None]
    total = tl.dot(weight.to(values.dtype), values, total, input_precision="ieee")
    return total, highest, summed


@triton.jit
def attend_kernel(
    q, kv, out, partial, partial_sum, items, tables, q_stride, plane, scale_log2, window,
    KV_HEADS: tl.constexpr, REPEAT: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr, COLUMNS: tl.constexpr,
    WINDOW: tl.constexpr, PARTIAL: tl.constexpr,
):  # fmt: skip
    """Run item program_id(0) for KV head program_id(1). `plane`: elements of one head's keys in the cache."""
    item = items + tl.program_id(0) * COLUMNS
    head = tl.program_id(1)
    first_token = tl.load(item)
    tokens = tl.load(item + 1)
    position = tl.load(item + 2)
    begin = tl.load(item + 3)
    end = tl.load(item + 4)
    table = tables + tl.load(item + 5)
    keys_at = kv + head.to(tl.int64) * plane
    values_at = keys_at + KV_HEADS * plane.to(tl.int64)

    row = tl.arange(0, BLOCK_QUERIES)
    dim = tl.arange(0, BLOCK_DIM)
    token = row // REPEAT
    column = head * REPEAT + row % REPEAT
    real = (token < tokens)[:, None] & (dim < HEAD_DIM)[None, :]
    source = (
        (first_token + token).to(tl.int64)[:, None] * q_stride + (column * HEAD_DIM)[:, None] + dim[None, :]
    )
    query = tl.load(q + source, mask=real, other=0.0)
    high = tl.minimum(position + token + 1, end)
    low = begin + tl.zeros([BLOCK_QUERIES], tl.int32)
    unmasked_begin = begin
    if WINDOW:
        low = tl.maximum(position + token + 1 - window, begin)
        # The keys that all queries of the item see.
        unmasked_begin = tl.minimum(end, tl.maximum(begin, position + tokens - window))
        unmasked_begin = begin + tl.cdiv(unmasked_begin - begin, BLOCK_KEYS) * BLOCK_KEYS
    unmasked_end = tl.minimum(position + 1, end)
    unmasked_end = begin + tl.maximum(unmasked_end - begin, 0) // BLOCK_KEYS * BLOCK_KEYS
    unmasked_begin = tl.minimum(unmasked_begin, unmasked_end)

    # A finite start keeps differences of two masked maxima from becoming NaN.
    largest = tl.full([BLOCK_QUERIES], -1.0e30, tl.float32)
    summed = tl.zeros([BLOCK_QUERIES], tl.float32)
    total = tl.zeros([BLOCK_QUERIES, BLOCK_DIM], tl.float32)
    if WINDOW:
        for start in range(begin, unmasked_begin, BLOCK_KEYS):
            total, largest, summed = _attend_block(
                query, kv, table, keys_at, values_at, start, low, high, total, largest, summed, scale_log2,
                HEAD_DIM, PAGE_SIZE, BLOCK_KEYS, BLOCK_DIM, True,
            )  # fmt: skip
    for start in range(unmasked_begin, unmasked_end, BLOCK_KEYS):
        total, largest, summed = _attend_block(
            query, kv, table, keys_at, values_at, start, low, high, total, largest, summed, scale_log2,
            HEAD_DIM, PAGE_SIZE, BLOCK_KEYS, BLOCK_DIM, False,
        )  # fmt: skip
    for start in range(unmasked_end, end, BLOCK_KEYS):
        total, largest, summed = _attend_block(
            query, kv, table, keys_at, values_at, start, low, high, total, largest, summed, scale_log2,
            HEAD_DIM, PAGE_SIZE, BLOCK_KEYS, BLOCK_DIM, True,
        )  # fmt: skip

    result = total / tl.where(summed > 0.0, summed, 1.0)[:, None]
    target = (first_token + token) * (KV_HEADS * REPEAT) + column
    to = tl.load(item + 6)
    if PARTIAL and to >= 0:
        place = (to + token * tl.load(item + 7)) * (KV_HEADS * REPEAT) + column
        tl.store(partial + place.to(tl.int64)[:, None] * HEAD_DIM + dim[None, :], result, mask=real)
        tl.store(partial_sum + place, largest + tl.log2(summed), mask=token < tokens)
    else:
        at = target.to(tl.int64)[:, None] * HEAD_DIM + dim[None, :]
        tl.store(out + at, result.to(out.dtype.element_ty), mask=real)


@triton.jit
def merge_kernel(
    partial, partial_sum, merges, out, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr
):
    """Combine the partial results of one query token and head, weighted by their sums of exponentials.

    A merge without partial results leaves the output of its token unchanged.
    """
    merge = merges + tl.program_id(0) * 3
    head = tl.program_id(1)
    token = tl.load(merge).to(tl.int64)
    first = tl.load(merge + 1)
    count = tl.load(merge + 2)
    if count == 0:
        return
    dim = tl.arange(0, BLOCK_DIM)
    largest = -1.0e30
    summed = 0.0
    total = tl.zeros([BLOCK_DIM], tl.float32)
    for part in range(first, first + count):
        place = tl.cast(part, tl.int64) * HEADS + head
        logsum = tl.load(partial_sum + place)
        value = tl.load(partial + place * HEAD_DIM + dim, mask=dim < HEAD_DIM, other=0.0)
        highest = tl.maximum(largest, logsum)
        correction = tl.exp2(largest - highest)
        weight = tl.exp2(logsum - highest)
        total = total * correction + value * weight
        summed = summed * correction + weight
        largest = highest
    at = (token * HEADS + head) * HEAD_DIM + dim
    tl.store(out + at, (total / summed).to(out.dtype.element_ty), mask=dim < HEAD_DIM)


class Plan(Protocol):
    """The attention of a step for all layers of one shape."""

    def run(self, q: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor: ...


class Shape(NamedTuple):
    """The sizes that all layers of one plan have."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None

    @property
    def repeat(self) -> int:
        """Query heads for each KV head."""
        return self.heads // self.kv_heads


def paged_attention(
    q: torch.Tensor, kv: torch.Tensor, batch: AttentionBatch, scale: float, window: int | None
) -> torch.Tensor:
    """See `attention.paged_attention`."""
    if window is not None and window >= int(batch.kv_lengths.max(initial=0)):
        window = None
    shape = Shape(q.shape[1], kv.shape[1], q.shape[2], window)
    plan = cast(Plan | None, batch.plans.get(shape))
    if plan is None:
        batch.plans[shape] = plan = BatchPlan(batch, shape, q.element_size(), q.device)
    return plan.run(q, kv, scale)


@dataclass(frozen=True)
class Tiles:
    """How the kernel is compiled for one kind of item."""

    queries: int
    keys: int
    warps: int

    @staticmethod
    def choose(queries: int, repeat: int, head_dim: int, element_size: int) -> "Tiles":
        """The largest tiles that spill no registers.

        queries: query heads for each KV head in the largest item; at least `repeat`, those of one token.
        """
        if element_size == 4:
            return Tiles(max(16, triton.next_power_of_2(repeat)), 16, 4)
        if queries <= 16:
            return Tiles(16, 32 if head_dim > 128 else 64, 4)
        if head_dim > 128:
            return Tiles(max(64, triton.next_power_of_2(repeat)), 32, 4)
        return Tiles(64 if queries <= 64 else 128, 64, 8)


@dataclass(frozen=True)
class Work:
    """Items on the device, int32 [items, COLUMNS], with the page tables that they read and their partial
    results."""

    items: torch.Tensor
    tables: torch.Tensor
    partial: torch.Tensor
    partial_sum: torch.Tensor
    window: int | None


class BatchPlan:
    """A plan for one step: its items on the device, and buffers for its layers."""

    def __init__(self, batch: AttentionBatch, shape: Shape, element_size: int, device: torch.device) -> None:
        self._shape = shape
        groups = batch.groups if shape.window is None else ()
        self._decode_tiles = decode_tiles(shape, groups, element_size)
        decode = plan_decode(batch, groups, shape, self._decode_tiles, device)
        chunk_queries = int(batch.query_lengths.max(initial=1)) * shape.repeat
        self._chunk_tiles = Tiles.choose(chunk_queries, shape.repeat, shape.head_dim, element_size)
        chunks = Share(np.arange(len(batch.kv_lengths)) >= batch.decode_rows, np.zeros(0, np.bool_))
        tokens = max(1, self._chunk_tiles.queries // shape.repeat)
        chunk = plan_items(batch, (), chunks, tokens, Cut(NO_SPLIT), shape.window)
        arrays = (
            with_table_offsets(decode, batch),
            with_table_offsets(chunk, batch),
            decode.merges,
            batch.joined_tables(),
        )
        decode_items, chunk_items, self._merges, tables = upload(
            [array.astype(np.int32) for array in arrays], device
        )
        partial = torch.empty(decode.partials, shape.heads, shape.head_dim, device=device)
        partial_sum = torch.empty(decode.partials, shape.heads, device=device)
        self._decode = Work(decode_items, tables, partial, partial_sum, shape.window)
        self._chunks = Work(chunk_items, tables, partial, partial_sum, shape.window)

    def run(self, q: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        attend(self._decode, self._decode_tiles, q, kv, out, scale, partial=True)
        merge(self._decode, self._merges, out)
        attend(self._chunks, self._chunk_tiles, q, kv, out, scale, partial=False)
        return out


def decode_tiles(shape: Shape, groups: Sequence[Group], element_size: int) -> Tiles:
    """The tiles for single rows and for the rows of `groups`."""
    most = min(GROUP_QUERIES, max((count * shape.repeat for _, count, _ in groups), default=1))
    return Tiles.choose(max(shape.repeat, most), shape.repeat, shape.head_dim, element_size)


def plan_decode(
    batch: AttentionBatch, groups: tuple[Group, ...], shape: Shape, tiles: Tiles, device: torch.device
) -> ItemPlan:
    """Items for the decode rows, whose keys are split so that every processor of the GPU has some
    programs."""
    covered = Share(np.arange(len(batch.kv_lengths)) < batch.decode_rows, np.ones(len(groups), np.bool_))
    together = max(1, tiles.queries // shape.repeat)
    wanted = keys_to_read(batch, groups, together) // max_splits(shape, device)
    split = max(MIN_SPLIT, -(-wanted // 64) * 64)
    return plan_items(batch, groups, covered, together, Cut(split), shape.window)


def max_splits(shape: Shape, device: torch.device) -> int:
    """The most pieces into which the keys of all decode rows are split, beyond one for each row and group."""
    processors = (
        torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    )
    return -(-processors * PROGRAMS_FOR_EACH_PROCESSOR // shape.kv_heads)


def keys_to_read(batch: AttentionBatch, groups: tuple[Group, ...], together: int) -> int:
    """The keys that all decode rows read. `together` rows of a group read its shared keys once."""
    keys = int(batch.kv_lengths[: batch.decode_rows].sum())
    for (_, rows, end), begin in zip(groups, first_keys(groups), strict=True):
        keys -= (end - begin) * (rows - -(-rows // together))
    return keys


def with_table_offsets(plan: ItemPlan, batch: AttentionBatch) -> NDArray[np.int64]:
    """The items, with the row replaced by the offset of its pages in the joined page tables."""
    offsets = np.concatenate(([0], np.cumsum(batch.page_counts())))
    items = plan.items.copy()
    items[:, ROW] = offsets[items[:, ROW]]
    return items


def attend(
    work: Work,
    tiles: Tiles,
    q: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    *,
    partial: bool,
) -> None:
    """partial: whether items may write partial results."""
    if not len(work.items):
        return
    _, kv_heads, pages, page_size, head_dim = kv.shape
    assert kv.is_contiguous() and q.stride(1) == head_dim and q.stride(2) == 1
    attend_kernel[(len(work.items), kv_heads)](
        q,
        kv,
        out,
        work.partial,
        work.partial_sum,
        work.items,
        work.tables,
        q.stride(0),
        pages * page_size * head_dim,
        scale * LOG2_E,
        work.window or 0,
        KV_HEADS=kv_heads,
        REPEAT=q.shape[1] // kv_heads,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        BLOCK_QUERIES=tiles.queries,
        BLOCK_KEYS=tiles.keys,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        COLUMNS=COLUMNS,
        WINDOW=work.window is not None,
        PARTIAL=partial,
        num_warps=tiles.warps,
        num_stages=2,
    )


def merge(work: Work, merges: torch.Tensor, out: torch.Tensor) -> None:
    """merges: int32 [merges, 3]: query token, first partial result, how many"""
    if not len(merges):
        return
    heads, head_dim = out.shape[1:]
    merge_kernel[(len(merges), heads)](
        work.partial,
        work.partial_sum,
        merges,
        out,
        HEADS=heads,
        HEAD_DIM=head_dim,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        num_warps=1,
    )
