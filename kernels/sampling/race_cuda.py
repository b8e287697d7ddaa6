# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""The Gumbel-max race on CUDA, and the end of sampling: token, log-probabilities, automaton of each row."""

import triton
import triton.language as tl

from ..automaton.cuda import advance
from .math_cuda import KEY_OF_MINUS_INFINITY, KEY_OF_NOTHING, gumbel, order_key, value_of_key
from .process_cuda import load_processed

GREEDY_BELOW = tl.constexpr(1e-5)
MINUS_INFINITY = tl.constexpr(float("-inf"))


@triton.jit
def race_kernel(
    x,
    row_stride,
    vocab,
    mask_index,
    mask_bits,
    temperature,
    seed,
    position,
    maxima,
    cuts,
    scores,
    winners,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program for chunk c of row r: its best score and that token's id, [rows, chunks] each.

    x: as `load_processed` reads it; cuts: int32 [rows, 2] as `cut_kernel` writes them, or None when no row is
    filtered.
    """
    row, chunk, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    part = row * chunks + chunk
    warmth = tl.load(temperature + row)
    cut, last_tie = tl.full((), KEY_OF_MINUS_INFINITY + 1, tl.int32), tl.full((), 0, tl.int32) + vocab
    if cuts is not None:
        cut, last_tie = tl.load(cuts + 2 * row), tl.load(cuts + 2 * row + 1)
    if (warmth >= GREEDY_BELOW) & (order_key(tl.load(maxima + part)) >= cut):
        lane = tl.arange(0, CHUNKS)
        largest = tl.max(tl.load(maxima + row * chunks + lane, mask=lane < chunks, other=MINUS_INFINITY))
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        value = load_processed(x, row, row_stride, token, vocab, mask_index, mask_bits)
        key = order_key(value)
        kept = (key > cut) | ((key == cut) & (token <= last_tie))
        noise = gumbel(tl.load(seed + row), tl.load(position + row), token)
        score = (value - largest) * tl.div_rn(1.0, warmth) + noise
        score = tl.where(kept & (token < vocab), score, MINUS_INFINITY)
        best, at = tl.max(score, axis=0, return_indices=True, return_indices_tie_break_left=True)
        tl.store(scores + part, best)
        tl.store(winners + part, chunk * CHUNK + at)
    else:
        tl.store(scores + part, MINUS_INFINITY)
        tl.store(winners + part, vocab)


@triton.jit(do_not_specialize=["top_count"])
def finish_kernel(
    logits,
    row_stride,
    temperature,
    maxima,
    leaders,
    nan,
    scores,
    winners,
    raw_maxima,
    raw_sums,
    chunk_values,
    chunk_ids,
    top_count,
    chunks,
    tokens,
    bad,
    logprobs,
    top_ids,
    top_logprobs,
    floor,
    slots,
    registers,
    tables,
    stepped,
    states,
    CHUNKS: tl.constexpr,
    TOPS: tl.constexpr,
):
    """One program for each row. scores and winners are None when all rows are greedy; raw_maxima, raw_sums,
    logprobs and the tops are None without log-probabilities; slots … states are None without automata."""
    row = tl.program_id(0)
    lane = tl.arange(0, CHUNKS)
    inside, part = lane < chunks, row * chunks + lane
    value = tl.load(maxima + part, mask=inside, other=MINUS_INFINITY)
    largest, at = tl.max(value, axis=0, return_indices=True, return_indices_tie_break_left=True)
    token = tl.load(leaders + row * chunks + at)
    has_nan = tl.max(tl.load(nan + part, mask=inside, other=0)) > 0
    is_bad = has_nan | (tl.abs(largest) == float("inf"))
    if scores is not None:  # noqa: SIM102 (decided at compile time)
        if tl.load(temperature + row) >= GREEDY_BELOW:
            score = tl.load(scores + part, mask=inside, other=MINUS_INFINITY)
            _, at = tl.max(score, axis=0, return_indices=True, return_indices_tie_break_left=True)
            token = tl.load(winners + row * chunks + at)
    token = tl.where(is_bad, 0, token)
    tl.store(tokens + row, token)
    tl.store(bad + row, is_bad.to(tl.int32) + has_nan.to(tl.int32))
    if registers is not None:
        tl.store(states + row, advance(row, tl.load(slots + row), token, registers, tables, stepped))
    if raw_maxima is not None:
        peak = tl.load(raw_maxima + part, mask=inside, other=MINUS_INFINITY)
        highest = tl.max(peak)
        sums = tl.load(raw_sums + part, mask=inside, other=0.0)
        total = tl.sum(tl.where(sums > 0, sums * tl.exp(peak - highest), 0.0))
        log_total = highest + tl.log(total)
        usable = (tl.abs(highest) < float("inf")) & (has_nan == 0)
        raw = tl.load(logits + row.to(tl.int64) * row_stride + token).to(tl.float32)
        tl.store(logprobs + row, tl.where(usable, tl.maximum(raw - log_total, floor), floor))
        entry = tl.arange(0, TOPS)
        listed = entry < chunks * top_count
        values = tl.load(chunk_values + row * chunks * top_count + entry, mask=listed, other=MINUS_INFINITY)
        keys = order_key(values)
        for rank in range(top_count):
            key, at = tl.max(keys, axis=0, return_indices=True, return_indices_tie_break_left=True)
            best = value_of_key(key)
            tl.store(top_ids + row * top_count + rank, tl.load(chunk_ids + row * chunks * top_count + at))
            logprob = tl.where(usable, tl.maximum(best - log_total, floor), floor)
            tl.store(top_logprobs + row * top_count + rank, logprob)
            keys = tl.where(entry == at, KEY_OF_NOTHING, keys)
