"""The Triton kernels of attention over pages: for work items (see `plan`), and to merge partial results."""

import triton
import triton.language as tl

from ..common.codes_cuda import FP8_UNIT, widen
from ..elementwise.cuda import tanh
from .plan import UNLIMITED

SEES_ALL = tl.constexpr(UNLIMITED)


@triton.jit
def _attend_block(
    query, table, keys_at, values_at, key_scales, value_scales, start, end, page, low, high, total,
    largest, summed, scale_log2, softcap_log2,
    HEAD_DIM: tl.constexpr, CELL: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr, SCALED: tl.constexpr, FP8: tl.constexpr, SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """One turn of the online softmax over keys from `start`; query j sees keys [low[j], high[j]).

    With SOFTCAP, scale_log2 is the scale divided by the cap.
    Takes the page id of each key, and returns those of the next block: keys and values whose addresses are
    known a turn ahead can be copied while the turn before them computes. If a block has whole pages, only
    the page ids change from turn to turn. Codes of scaled cells are multiplied as they are; their scales
    multiply scores and weights. float16 has too few exponents for such weights, so values are scaled instead.
    """
    of_block = tl.arange(0, BLOCK_KEYS)
    key = start + of_block
    dim = tl.arange(0, BLOCK_DIM)
    next_start = start + BLOCK_KEYS
    if BLOCK_KEYS % PAGE_SIZE == 0:
        next_at = table + next_start // PAGE_SIZE + of_block // PAGE_SIZE
        of_page = of_block % PAGE_SIZE
    else:
        next_at = table + (next_start + of_block) // PAGE_SIZE
        of_page = key % PAGE_SIZE
    next_page = tl.load(next_at, mask=of_block < end - next_start)
    of_page = (of_page * CELL)[:, None] + dim[None, :]
    at_page = (page.to(tl.int64) * (PAGE_SIZE * CELL))[:, None]
    exists = key < end
    if MASKED or HEAD_DIM != BLOCK_DIM:
        inside = (dim < HEAD_DIM)[None, :]
        if MASKED:
            inside = inside & exists[:, None]
        keys = tl.load(keys_at + of_page + at_page, mask=inside, other=0)
        values = tl.load(values_at + of_page + at_page, mask=inside, other=0)
    else:
        keys = tl.load(keys_at + of_page + at_page)
        values = tl.load(values_at + of_page + at_page)
    if SCALED:
        place = page.to(tl.int64) * (PAGE_SIZE * CELL // 4) + key % PAGE_SIZE * (CELL // 4)
        key_scale = tl.load(key_scales + place, mask=exists, other=0.0)
        value_scale = tl.load(value_scales + place, mask=exists, other=0.0)
        if FP8:
            key_scale, value_scale = key_scale * FP8_UNIT, value_scale * FP8_UNIT
        keys = widen(keys, query.dtype, FP8)
        values = widen(values, query.dtype, FP8)
        if query.dtype == tl.float16:
            values = (values.to(tl.float32) * value_scale[:, None]).to(tl.float16)
    score = tl.dot(query, tl.trans(keys), input_precision="ieee")
    if SCALED:
        score = score * key_scale[None, :]
    if SOFTCAP:
        score = softcap_log2 * tanh(score * scale_log2)
        scale_log2 = 1.0
    if MASKED:
        visible = (key[None, :] >= low[:, None]) & (key[None, :] < high[:, None])
        score = tl.where(visible, score, float("-inf"))
    highest = tl.maximum(largest, tl.max(score, axis=1) * scale_log2)
    correction = tl.exp2(largest - highest)
    weight = tl.exp2(score * scale_log2 - highest[:, None])
    summed = summed * correction + tl.sum(weight, axis=1)
    total = total * correction[:, None]
    if SCALED and query.dtype != tl.float16:
        weight = weight * value_scale[None, :]
    total = tl.dot(weight.to(values.dtype), values, total, input_precision="ieee")
    return total, highest, summed, next_page


@triton.jit
def share_of_keys(sinks, head, exists, logsum):
    """The part of the softmax that is not the sink's. logsum: the binary logarithm of the keys' sum"""
    sink = tl.load(sinks + head, mask=exists, other=0.0)
    return 1.0 / (1.0 + tl.exp2(sink * 1.4426950408889634 - logsum))


@triton.jit
def attend_kernel(
    q, kv, scales, out, partial, partial_sum, items, tables, places, sinks, q_stride, slots, scale_log2,
    softcap_log2, reach,
    KV_HEADS: tl.constexpr, REPEAT: tl.constexpr, HEAD_DIM: tl.constexpr, CELL: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    COLUMNS: tl.constexpr, SCALED: tl.constexpr, FP8: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Run item program_id(0) // KV_HEADS for KV head program_id(0) % KV_HEADS.

    So the programs of unused items, which follow the others, run last.

    kv: int8 if SCALED; then `scales` is the same memory as float32. slots: tokens that the cache can hold.
    places: the first partial result of each query token. reach: tokens of the window or chunk.
    With SOFTCAP, scale_log2 is the scale divided by the cap.
    """
    item = items + tl.program_id(0) // KV_HEADS * COLUMNS
    head = tl.program_id(0) % KV_HEADS
    first_token = tl.load(item)
    tokens = tl.load(item + 1)
    if tokens == 0:  # unused capacity of a frame
        return
    position = tl.load(item + 2)
    begin = tl.load(item + 3)
    end = tl.load(item + 4)
    table = tables + tl.load(item + 5)
    first_key_cell = head.to(tl.int64) * slots
    first_value_cell = first_key_cell + KV_HEADS * slots.to(tl.int64)
    keys_at = kv + first_key_cell * CELL
    values_at = kv + first_value_cell * CELL
    key_scales = scales + (first_key_cell + 1) * (CELL // 4) - 1
    value_scales = scales + (first_value_cell + 1) * (CELL // 4) - 1

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
    first = begin
    if BLOCK_KEYS % PAGE_SIZE == 0:  # so that each block has whole pages, of whose keys some are masked
        first = begin // PAGE_SIZE * PAGE_SIZE
    unmasked_begin = first
    if WINDOW or CHUNK:
        reach = tl.where(position == SEES_ALL, 2 * SEES_ALL, reach)
        last = position + tokens - 1
        if WINDOW:
            low = position + token + 1 - reach
            of_last = last + 1 - reach
        else:
            low = (position + token) // reach * reach
            of_last = last // reach * reach
        low = tl.maximum(low, begin)
        # The keys that all queries of the item see.
        unmasked_begin = tl.minimum(end, tl.maximum(begin, of_last))
        unmasked_begin = first + tl.cdiv(unmasked_begin - first, BLOCK_KEYS) * BLOCK_KEYS
    unmasked_end = tl.minimum(position + 1, end)
    unmasked_end = first + tl.maximum(unmasked_end - first, 0) // BLOCK_KEYS * BLOCK_KEYS
    unmasked_begin = tl.minimum(unmasked_begin, unmasked_end)

    # A finite start keeps differences of two masked maxima from becoming NaN.
    largest = tl.full([BLOCK_QUERIES], -1.0e30, tl.float32)
    summed = tl.zeros([BLOCK_QUERIES], tl.float32)
    total = tl.zeros([BLOCK_QUERIES, BLOCK_DIM], tl.float32)
    first_key = first + tl.arange(0, BLOCK_KEYS)
    page = tl.load(table + first_key // PAGE_SIZE, mask=first_key < end)
    if WINDOW or CHUNK:
        for start in range(first, unmasked_begin, BLOCK_KEYS):
            total, largest, summed, page = _attend_block(
                query, table, keys_at, values_at, key_scales, value_scales, start, end, page, low, high,
                total, largest, summed, scale_log2, softcap_log2,
                HEAD_DIM, CELL, PAGE_SIZE, BLOCK_KEYS, BLOCK_DIM, SCALED, FP8, SOFTCAP, True,
            )  # fmt: skip
    for start in range(unmasked_begin, unmasked_end, BLOCK_KEYS):
        total, largest, summed, page = _attend_block(
            query, table, keys_at, values_at, key_scales, value_scales, start, end, page, low, high,
            total, largest, summed, scale_log2, softcap_log2,
            HEAD_DIM, CELL, PAGE_SIZE, BLOCK_KEYS, BLOCK_DIM, SCALED, FP8, SOFTCAP, False,
        )  # fmt: skip
    for start in range(unmasked_end, end, BLOCK_KEYS):
        total, largest, summed, page = _attend_block(
            query, table, keys_at, values_at, key_scales, value_scales, start, end, page, low, high,
            total, largest, summed, scale_log2, softcap_log2,
            HEAD_DIM, CELL, PAGE_SIZE, BLOCK_KEYS, BLOCK_DIM, SCALED, FP8, SOFTCAP, True,
        )  # fmt: skip

    share = 1.0 / tl.where(summed > 0.0, summed, 1.0)
    target = (first_token + token) * (KV_HEADS * REPEAT) + column
    part = tl.load(item + 6)
    if SINKS:  # noqa: SIM102 -- `and` would be computed by the kernel
        if part < 0:
            share *= share_of_keys(sinks, column, token < tokens, largest + tl.log2(summed))
    result = total * share[:, None]
    if part >= 0:
        place = tl.load(places + first_token + token, mask=token < tokens, other=0) + part
        place = place * (KV_HEADS * REPEAT) + column
        tl.store(partial + place.to(tl.int64)[:, None] * HEAD_DIM + dim[None, :], result, mask=real)
        tl.store(partial_sum + place, largest + tl.log2(summed), mask=token < tokens)
    else:
        at = target.to(tl.int64)[:, None] * HEAD_DIM + dim[None, :]
        tl.store(out + at, result.to(out.dtype.element_ty), mask=real)


@triton.jit
def merge_kernel(
    partial, partial_sum, merges, sinks, out,
    SINKS: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):  # fmt: skip
    """Combine the partial results of one query token and head, weighted by their sums of exponentials.

    A merge without partial results leaves the output of its token unchanged.
    """
    merge = merges + tl.program_id(0) * 3
    head = tl.program_id(1)
    token = tl.load(merge).to(tl.int64)
    first = tl.load(merge + 1).to(tl.int64)
    count = tl.load(merge + 2)
    if count == 0:
        return
    dim = tl.arange(0, BLOCK_DIM)
    largest = -1.0e30
    summed = 0.0
    total = tl.zeros([BLOCK_DIM], tl.float32)
    for start in range(0, count, BLOCK_PARTS):
        part = start + tl.arange(0, BLOCK_PARTS)
        exists = part < count
        place = (first + part) * HEADS + head
        logsum = tl.load(partial_sum + place, mask=exists, other=float("-inf"))
        inside = exists[:, None] & (dim < HEAD_DIM)[None, :]
        value = tl.load(partial + place[:, None] * HEAD_DIM + dim[None, :], mask=inside, other=0.0)
        highest = tl.maximum(largest, tl.max(logsum, axis=0))
        correction = tl.exp2(largest - highest)
        weight = tl.exp2(logsum - highest)
        total = total * correction + tl.sum(value * weight[:, None], axis=0)
        summed = summed * correction + tl.sum(weight, axis=0)
        largest = highest
    share = 1.0 / summed
    if SINKS:
        share *= share_of_keys(sinks, head, True, largest + tl.log2(summed))
    at = (token * HEADS + head) * HEAD_DIM + dim
    tl.store(out + at, (total * share).to(out.dtype.element_ty), mask=dim < HEAD_DIM)
