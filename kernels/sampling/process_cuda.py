# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""First pass over the logits on CUDA: masks, bias, penalties, and partial results of each chunk of a row."""

import triton
import triton.language as tl

from .math_cuda import KEY_OF_NOTHING, order_key, value_of_key

MINUS_INFINITY = tl.constexpr(float("-inf"))
LOWEST_FLOAT = tl.constexpr(-3.4028234663852886e38)
SUB_BLOCK = tl.constexpr(128)


@triton.jit(do_not_specialize=["top_count"])
def process_kernel(
    logits,
    row_stride,
    vocab,
    mask_index,
    mask_bits,
    host_mask_index,
    host_mask_bits,
    banned_start,
    banned_ids,
    bias_start,
    bias_ids,
    bias_values,
    penalty_entry,
    repetition,
    presence,
    frequency,
    prompt_seen,
    output_counts,
    processed,
    maxima,
    leaders,
    nan,
    sub_maxima,
    raw_maxima,
    raw_sums,
    top_values,
    top_ids,
    top_count,
    CHUNK: tl.constexpr,
):
    """One program for chunk c of row r. Optional pointers are None if their part is unused.

    processed float32 [rows, vocab]; maxima float32, leaders (first id of the maximum) and nan int32 [rows,
    chunks]; sub_maxima int32 [rows, chunks * CHUNK / 128]: largest keys; raw_maxima and raw_sums (of
    exp(raw - maximum)) float32 [rows, chunks]; top_values and top_ids [rows, chunks, top_count].
    """
    row, chunk, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    wide_row, part = row.to(tl.int64), row * chunks + chunk
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocab
    raw = tl.load(logits + wide_row * row_stride + token, mask=inside, other=MINUS_INFINITY).to(tl.float32)
    tl.store(nan + part, tl.max((raw != raw).to(tl.int32)))
    if raw_maxima is not None:
        _sum_raw(raw, raw_maxima + part, raw_sums + part)
        _top_of_chunk(raw, token, vocab, top_values + part * top_count, top_ids + part * top_count, top_count)
    x = tl.where(raw != raw, MINUS_INFINITY, raw)
    if mask_index is not None:
        x = _masked(x, token, inside, vocab, tl.load(mask_index + row), mask_bits)
    if host_mask_index is not None:
        x = _masked(x, token, inside, vocab, tl.load(host_mask_index + row), host_mask_bits)
    if banned_start is not None:
        for i in range(tl.load(banned_start + row), tl.load(banned_start + row + 1)):
            x = tl.where(token == tl.load(banned_ids + i), MINUS_INFINITY, x)
    if bias_start is not None:
        for i in range(tl.load(bias_start + row), tl.load(bias_start + row + 1)):
            x = tl.where(token == tl.load(bias_ids + i), x + tl.load(bias_values + i), x)
    if penalty_entry is not None:
        entry = tl.load(penalty_entry + row).to(tl.int64)
        if entry >= 0:
            count = tl.load(output_counts + entry * vocab + token, mask=inside, other=0)
            prompt = _bits(prompt_seen + entry * ((vocab + 31) // 32), token, inside)
            x = _penalised(
                x,
                count,
                (prompt != 0) | (count > 0),
                tl.load(repetition + row),
                tl.load(presence + row),
                tl.load(frequency + row),
            )
    if processed is not None:
        tl.store(processed + wide_row * vocab + token, x, mask=inside)
    largest, at = tl.max(x, axis=0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(maxima + part, largest)
    tl.store(leaders + part, chunk * CHUNK + at)
    if sub_maxima is not None:
        keys = tl.max(tl.reshape(order_key(x), (CHUNK // SUB_BLOCK, SUB_BLOCK)), axis=1)
        sub_block = part * (CHUNK // SUB_BLOCK) + tl.arange(0, CHUNK // SUB_BLOCK)
        tl.store(sub_maxima + sub_block, keys)


@triton.jit
def load_processed(x, row, row_stride, token, vocab, mask_index, mask_bits):
    """Processed logits of a row as float32: x after the mask, if there is one, and with -inf for NaN."""
    inside = token < vocab
    value = tl.load(x + row.to(tl.int64) * row_stride + token, mask=inside, other=MINUS_INFINITY)
    value = value.to(tl.float32)
    value = tl.where(value != value, MINUS_INFINITY, value)
    if mask_index is not None:
        value = _masked(value, token, inside, vocab, tl.load(mask_index + row), mask_bits)
    return value


@triton.jit
def _bits(words, token, inside):
    return (tl.load(words + (token >> 5), mask=inside, other=0) >> (token & 31)) & 1


@triton.jit
def _masked(x, token, inside, vocab, index, bits):
    if index >= 0:
        allowed = _bits(bits + index.to(tl.int64) * ((vocab + 31) // 32), token, inside)
        x = tl.where(allowed != 0, x, MINUS_INFINITY)
    return x


@triton.jit
def _penalised(x, count, seen, repetition, presence, frequency):
    factor = tl.where(seen, repetition, 1.0)
    x = tl.where(x > 0, tl.div_rn(x, factor), x * factor)
    x = tl.where(count > 0, x - frequency * count.to(tl.float32), x)
    return tl.where(count > 0, x - presence, x)


@triton.jit
def _sum_raw(raw, raw_maximum, raw_sum):
    largest = tl.max(raw)
    tl.store(raw_maximum, largest)
    tl.store(raw_sum, tl.sum(tl.exp(raw - tl.maximum(largest, LOWEST_FLOAT))))


@triton.jit
def _top_of_chunk(raw, token, vocab, values, ids, count):
    key = order_key(raw)
    for rank in range(count):
        best, at = tl.max(key, axis=0, return_indices=True, return_indices_tie_break_left=True)
        first = tl.min(token) + at
        tl.store(values + rank, value_of_key(best))
        tl.store(ids + rank, tl.minimum(first, vocab - 1))
        key = tl.where(token == first, KEY_OF_NOTHING, key)
