"""The Gumbel-max race on CUDA, and the end of sampling: token, log-probabilities, automaton of each row."""

import triton
import triton.language as tl

from ..automaton.cuda import advance
from .filter_cuda import NO_LIST, largest_of
from .math_cuda import (
    KEY_OF_MINUS_INFINITY,
    KEY_OF_NOTHING,
    gumbel,
    may_reach,
    order_key,
    random_word,
    value_of_key,
)
from .process_cuda import load_processed, tokens_from

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
    leaders,
    chunks,
    bounds,
    lengths,
    listed,
    cuts,
    scores,
    winners,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    STRETCH: tl.constexpr,
    TILE: tl.constexpr,
):
    """Finds the best score in part s of row r, and its token's id. Writes both, [rows, parts] each.

    x: as `load_processed` reads it; maxima and leaders: as `process_kernel` writes them; bounds, lengths and
    listed: as `gather_kernel` writes them; cuts: int32 [rows, 2] as `cut_kernel` writes them. The last four
    are None when no row is filtered. A part is a stretch of the row, or tiles of its lists.
    """
    row, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    warmth = tl.load(temperature + row)
    cut, last_tie = tl.full((), KEY_OF_MINUS_INFINITY + 1, tl.int32), tl.full((), 0, tl.int32) + vocab
    kind = NO_LIST
    if cuts is not None:
        cut, last_tie = tl.load(cuts + 2 * row), tl.load(cuts + 2 * row + 1)
        kind = tl.load(bounds + 3 * row)
    best, winner = tl.full((), MINUS_INFINITY, tl.float32), tl.full((), 0, tl.int32) + vocab
    if warmth >= GREEDY_BELOW:
        inverse, own_seed, at = tl.div_rn(1.0, warmth), tl.load(seed + row), tl.load(position + row)
        peak = order_key(tl.load(maxima + row * chunks + part * STRETCH // CHUNK))
        if (kind == NO_LIST) & (peak >= cut):
            best, winner = _best_of_stretch(
                x,
                row,
                row_stride,
                vocab,
                mask_index,
                mask_bits,
                maxima + row * chunks,
                leaders + row * chunks,
                chunks,
                part * STRETCH,
                inverse,
                own_seed,
                at,
                cut,
                last_tie,
                CHUNKS,
                STRETCH,
            )
        if cuts is not None:  # noqa: SIM102 (decided at compile time)
            if kind != NO_LIST:
                largest = largest_of(maxima, row, chunks, CHUNKS)
                ids = listed + row.to(tl.int64) * 2 * vocab
                number, above = tl.load(lengths + 2 * row), tl.load(lengths + 2 * row + 1)
                for start in range(part * TILE, number + above, parts * TILE):
                    lane = start + tl.arange(0, TILE)
                    place = tl.where(lane < number, lane, vocab - 1 - lane + number)
                    inside = lane < number + above
                    token = tl.load(ids + place, mask=inside, other=0)
                    key = tl.load(ids + vocab + place, mask=inside, other=KEY_OF_MINUS_INFINITY)
                    score = (value_of_key(key) - largest) * inverse
                    score += gumbel(random_word(own_seed, at, token))
                    score = tl.where(_is_kept(key, token, cut, last_tie), score, MINUS_INFINITY)
                    highest = tl.max(score)
                    first = tl.min(tl.where(score == highest, token, vocab))
                    better = (highest > best) | ((highest == best) & (first < winner))
                    best, winner = tl.where(better, highest, best), tl.where(better, first, winner)
    tl.store(scores + row * parts + part, best)
    tl.store(winners + row * parts + part, winner)


@triton.jit
def _best_of_stretch(
    x,
    row,
    row_stride,
    vocab,
    mask_index,
    mask_bits,
    maxima,
    leaders,
    chunks,
    begin,
    inverse,
    seed,
    position,
    cut,
    last_tie,
    CHUNKS: tl.constexpr,
    STRETCH: tl.constexpr,
):
    """The best score of a stretch of a row and its token. maxima, leaders: of the row's chunks.

    Few tokens draw enough noise to beat the leaders of the row's chunks. Logarithms are computed only in
    stretches that have such a token.
    """
    lane = tl.arange(0, CHUNKS)
    highest = tl.load(maxima + lane, mask=lane < chunks, other=MINUS_INFINITY)
    leader = tl.load(leaders + lane, mask=lane < chunks, other=0)
    largest = tl.max(highest)
    ahead = (highest - largest) * inverse + gumbel(random_word(seed, position, leader))
    to_beat = tl.max(tl.where(_is_kept(order_key(highest), leader, cut, last_tie), ahead, MINUS_INFINITY))
    token = tokens_from(begin, STRETCH)
    value = load_processed(x, row, row_stride, token, vocab, mask_index, mask_bits)
    distance = (value - largest) * inverse
    word = random_word(seed, position, token)
    kept = _is_kept(order_key(value), token, cut, last_tie) & may_reach(word, to_beat - distance)
    best, winner = tl.full((), MINUS_INFINITY, tl.float32), tl.full((), 0, tl.int32) + vocab
    if tl.max(kept.to(tl.int32)) > 0:
        score = tl.where(kept, distance + gumbel(word), MINUS_INFINITY)
        best = tl.max(score)
        winner = tl.min(tl.where(score == best, token, vocab))
    return best, winner


@triton.jit
def _is_kept(key, token, cut, last_tie):
    return (key > cut) | ((key == cut) & (token <= last_tie))


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
    parts,
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
    PARTS: tl.constexpr,
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
            each = tl.arange(0, PARTS)
            score = tl.load(scores + row * parts + each, mask=each < parts, other=MINUS_INFINITY)
            winner = tl.load(winners + row * parts + each, mask=each < parts, other=0x7FFFFFFF)
            token = tl.min(tl.where(score == tl.max(score), winner, 0x7FFFFFFF))
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
