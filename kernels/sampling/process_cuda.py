"""First pass over the logits on CUDA: masks, bias, penalties, and partial results of each chunk of a row."""

import triton
import triton.language as tl

from .math_cuda import KEY_OF_NOTHING, order_key, value_of_key

MINUS_INFINITY = tl.constexpr(float("-inf"))
MIN_FLOAT = tl.constexpr(-3.4028234663852886e38)
SUB_BLOCK = tl.constexpr(128)
WORD = tl.constexpr(32)
"""tokens in one word of a bit mask"""


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
    draft_offsets,
    drafts,
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
    """Processes chunk c of row r in one program. Optional pointers are None if their part is unused.
    Penalties count the drafts before a row as output.

    processed float32 [rows, vocab]; maxima float32, leaders (first id of the maximum) and nan int32 [rows,
    chunks]; sub_maxima int32 [rows, chunks * CHUNK / 128]: largest keys; raw_maxima and raw_sums (of
    exp(raw - maximum)) float32 [rows, chunks]; top_values and top_ids [rows, chunks, top_count].
    """
    row, chunk, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    wide_row, part = row.to(tl.int64), row * chunks + chunk
    token = tokens_from(chunk * CHUNK, CHUNK)
    inside = token < vocab
    raw = tl.load(logits + wide_row * row_stride + token, mask=inside, other=MINUS_INFINITY).to(tl.float32)
    tl.store(nan + part, tl.max((raw != raw).to(tl.int32)))
    if raw_maxima is not None:
        _sum_raw(raw, raw_maxima + part, raw_sums + part)
        _top_of_chunk(raw, token, vocab, top_values + part * top_count, top_ids + part * top_count, top_count)
    x = tl.where(raw != raw, MINUS_INFINITY, raw)
    if mask_index is not None:
        x = _masked(x, token, vocab, tl.load(mask_index + row), mask_bits)
    if host_mask_index is not None:
        x = _masked(x, token, vocab, tl.load(host_mask_index + row), host_mask_bits)
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
            if draft_offsets is not None:
                for before in range(row - tl.load(draft_offsets + row), row):
                    count += (token == tl.load(drafts + before)).to(tl.int32)
            prompt = _bits(prompt_seen + entry * ((vocab + 31) // 32), token, vocab)
            x = _penalise_logit(
                x,
                count,
                (prompt != 0) | (count > 0),
                tl.load(repetition + row),
                tl.load(presence + row),
                tl.load(frequency + row),
            )
    if processed is not None:
        tl.store(processed + wide_row * vocab + token, x, mask=inside)
    largest = tl.max(x)
    tl.store(maxima + part, largest)
    tl.store(leaders + part, tl.min(tl.where(x == largest, token, vocab - 1)))
    if sub_maxima is not None:
        keys = tl.max(order_key(x), axis=1)
        keys = tl.max(tl.reshape(keys, (CHUNK // SUB_BLOCK, SUB_BLOCK // WORD)), axis=1)
        sub_block = part * (CHUNK // SUB_BLOCK) + tl.arange(0, CHUNK // SUB_BLOCK)
        tl.store(sub_maxima + sub_block, keys)


@triton.jit
def tokens_from(first, SIZE: tl.constexpr):
    """SIZE token ids from `first`, a multiple of 32: int32 [SIZE / 32, 32], one row for each mask word."""
    return first + tl.arange(0, SIZE // WORD)[:, None] * WORD + tl.arange(0, WORD)[None, :]


@triton.jit
def load_processed(x, row, row_stride, token, vocab, mask_index, mask_bits):
    """A row's processed logits as float32: `x` after the mask, if there is one, with NaN replaced by -inf.

    token: ids from `tokens_from`, which read each mask word once, or ids of any shape
    """
    value = tl.load(x + row.to(tl.int64) * row_stride + token, mask=token < vocab, other=MINUS_INFINITY)
    value = value.to(tl.float32)
    value = tl.where(value != value, MINUS_INFINITY, value)
    if mask_index is not None:
        value = _masked(value, token, vocab, tl.load(mask_index + row), mask_bits)
    return value


@triton.jit
def _bits(words, token, vocab):
    """The bits of tokens in a bit mask. If `token` comes from `tokens_from`, each word is read once."""
    if len(token.shape) == 2:
        word = tl.min(token, axis=1) // WORD
        word = tl.load(words + word, mask=word * WORD < vocab, other=0)[:, None]
    else:
        word = tl.load(words + (token >> 5), mask=token < vocab, other=0)
    return (word >> (token & 31)) & 1


@triton.jit
def _masked(x, token, vocab, index, bits):
    if index >= 0:
        allowed = _bits(bits + index.to(tl.int64) * ((vocab + 31) // 32), token, vocab)
        x = tl.where(allowed != 0, x, MINUS_INFINITY)
    return x


@triton.jit
def _penalise_logit(x, count, seen, repetition, presence, frequency):
    factor = tl.where(seen, repetition, 1.0)
    x = tl.where(x > 0, tl.div_rn(x, factor), x * factor)
    x = tl.where(count > 0, x - frequency * count.to(tl.float32), x)
    return tl.where(count > 0, x - presence, x)


@triton.jit
def _sum_raw(raw, raw_maximum, raw_sum):
    largest = tl.max(raw)
    tl.store(raw_maximum, largest)
    tl.store(raw_sum, tl.sum(tl.exp(raw - tl.maximum(largest, MIN_FLOAT))))


@triton.jit
def _top_of_chunk(raw, token, vocab, values, ids, count):
    key = order_key(raw)
    for rank in range(count):
        best = tl.max(key)
        first = tl.min(tl.where(key == best, token, 0x7FFFFFFF))
        tl.store(values + rank, value_of_key(best))
        tl.store(ids + rank, tl.minimum(first, vocab - 1))
        key = tl.where(token == first, KEY_OF_NOTHING, key)
