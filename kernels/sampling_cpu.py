# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Sampling on the CPU with numba, one row after another."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .sampling_batch import GREEDY_BELOW, LOGPROB_FLOOR, Penalties, Sampled, SamplingBatch, TokenMask
from .sampling_jit import compiled
from .sampling_math_cpu import F32, KEY_OF_INFINITY, KEY_OF_MINUS_INFINITY, order_key, value_of_key
from .sampling_process_cpu import add_bias, apply_mask, ban, penalise
from .sampling_race_cpu import race
from .sampling_select_cpu import (
    BLOCK,
    LOWEST_KEY,
    block_maxima,
    filtered,
    first_with_key,
    top_k_cut,
    total_mass,
)

Array = NDArray[Any]

CHOICE = np.dtype(
    [("seed", "i8"), ("position", "i4"), ("inverse", "f4"), ("top_k", "i4"), ("top_p", "f4"), ("min_p", "f4")]
)
"""inverse: of the temperature, 0 for greedy rows"""


def sample(logits: torch.Tensor, batch: SamplingBatch, top_logprobs: int | None) -> Sampled:
    rows, count = len(logits), top_logprobs or 0
    tokens, bad = torch.zeros(rows, dtype=torch.int32), torch.zeros(rows, dtype=torch.bool)
    logprobs = torch.full((rows,), LOGPROB_FLOOR)
    top_ids = torch.zeros(rows, count, dtype=torch.int32)
    tops = torch.full((rows, count), LOGPROB_FLOOR)
    _sample_rows(
        logits.numpy(),
        _choice(batch),
        _lists(batch),
        (_mask(batch.mask, rows), _mask(batch.host_mask, rows)),
        _penalties(batch.penalties, rows),
        top_logprobs is not None,
        tuple(t.numpy() for t in (tokens, bad, logprobs, top_ids, tops)),
    )
    if top_logprobs is None:
        return Sampled(tokens, bad, None, None, None)
    return Sampled(tokens, bad, logprobs, top_ids, tops)


def _choice(batch: SamplingBatch) -> Array:
    choice = np.zeros(len(batch.temperature), CHOICE)
    temperature = batch.temperature.numpy()
    warm = temperature >= GREEDY_BELOW
    choice["inverse"][warm] = F32(1) / temperature[warm]
    choice["seed"], choice["position"] = batch.seed, batch.position
    choice["top_k"] = 0 if batch.top_k is None else batch.top_k
    choice["top_p"] = 1 if batch.top_p is None else batch.top_p
    choice["min_p"] = 0 if batch.min_p is None else batch.min_p
    return choice


def _lists(batch: SamplingBatch) -> tuple[Array, ...]:
    """Starts and ids of banned tokens; starts, ids and values of the bias."""
    none = np.zeros(len(batch.temperature) + 1, np.int32), np.zeros(0, np.int32)
    banned = none if batch.banned is None else (batch.banned.row_start.numpy(), batch.banned.ids.numpy())
    if batch.bias is None:
        return *banned, *none, np.zeros(0, np.float32)
    return *banned, batch.bias.row_start.numpy(), batch.bias.ids.numpy(), batch.bias.values.numpy()


def _mask(mask: TokenMask | None, rows: int) -> tuple[Array, Array]:
    if mask is None:
        return np.full(rows, -1, np.int32), np.zeros((0, 0), np.int32)
    return mask.index.numpy(), mask.bits.numpy()


def _penalties(penalties: Penalties | None, rows: int) -> tuple[Array, ...]:
    if penalties is None:
        off, table = np.zeros(rows, np.float32), np.zeros((0, 0), np.int32)
        return np.full(rows, -1, np.int32), off, off, off, table, table
    p = penalties
    tensors = (p.entry, p.repetition, p.presence, p.frequency, p.prompt_seen, p.output_counts)
    return tuple(tensor.numpy() for tensor in tensors)


@compiled
def _sample_rows(logits, choice, lists, masks, penalties, with_logprobs, outputs):
    vocab = logits.shape[1]
    maxima = np.empty((vocab + BLOCK - 1) // BLOCK, np.int32)
    scratch = np.empty(vocab, np.float32)
    values = np.empty(vocab, np.float32)
    tokens, bad, logprobs, top_ids, tops = outputs
    for row in range(len(logits)):
        raw = logits[row]
        highest, bad[row] = block_maxima(raw, maxima)
        if bad[row]:
            continue
        if with_logprobs and KEY_OF_MINUS_INFINITY < highest < KEY_OF_INFINITY:
            log_total = _log_total(raw, value_of_key(highest))
            if top_ids.shape[1]:
                _top_logprobs(raw, maxima, highest, log_total, values, top_ids[row], tops[row])
        x = raw
        if _is_processed(row, lists, masks, penalties):
            x = scratch
            x[:] = raw
            _process(x, row, lists, masks, penalties)
            highest, _ = block_maxima(x, maxima)
        bad[row] = not (KEY_OF_MINUS_INFINITY < highest < KEY_OF_INFINITY)
        if bad[row]:
            continue
        tokens[row] = _choose(x, maxima, highest, choice[row], values)
        if with_logprobs:
            logprobs[row] = max(F32(LOGPROB_FLOOR), F32(raw[tokens[row]] - log_total))


@compiled
def _is_processed(row, lists, masks, penalties):
    banned_start, _, bias_start, _, _ = lists
    return (
        banned_start[row] < banned_start[row + 1]
        or bias_start[row] < bias_start[row + 1]
        or masks[0][0][row] >= 0
        or masks[1][0][row] >= 0
        or penalties[0][row] >= 0
    )


@compiled
def _process(x, row, lists, masks, penalties):
    banned_start, banned_ids, bias_start, bias_ids, bias_values = lists
    for index, bits in masks:
        if index[row] >= 0:
            apply_mask(x, bits[index[row]])
    ban(x, banned_ids[banned_start[row] : banned_start[row + 1]])
    start, end = bias_start[row], bias_start[row + 1]
    add_bias(x, bias_ids[start:end], bias_values[start:end])
    entry, repetition, presence, frequency, prompt_seen, counts = penalties
    if entry[row] >= 0:
        e = entry[row]
        penalise(x, prompt_seen[e], counts[e], repetition[row], presence[row], frequency[row])


@compiled
def _choose(x, maxima, highest, choice, values):
    leader = first_with_key(x, maxima, highest)
    if choice.inverse == 0:
        return leader
    largest, inverse = value_of_key(highest), choice.inverse
    cut, last = filtered(x, maxima, largest, inverse, choice.top_k, choice.top_p, choice.min_p, values)
    seed, position = np.uint64(choice.seed), np.uint64(choice.position)
    return race(x, maxima, largest, inverse, seed, position, leader, cut, last)


@compiled
def _log_total(x, largest):
    return np.float64(largest) + np.log(np.float64(total_mass(x, largest, F32(1))) * 2.0**-40)


@compiled
def _top_logprobs(x, maxima, highest, log_total, values, top_ids, tops):
    count = len(top_ids)
    cut, last = top_k_cut(x, maxima, LOWEST_KEY - 1, count, value_of_key(highest), F32(1), values)
    found = 0
    for block in range(len(maxima)):
        if maxima[block] >= cut:
            for i in range(block * BLOCK, min(len(x), block * BLOCK + BLOCK)):
                key = order_key(x[i])
                if key > cut or (key == cut and i <= last):
                    top_ids[found], tops[found] = i, x[i]
                    found += 1
    # A stable sort of the few that are left: by falling value, rising id.
    order = np.argsort(-tops, kind="mergesort")
    top_ids[:] = top_ids[order]
    tops[:] = np.maximum(F32(LOGPROB_FLOOR), (tops[order] - log_total).astype(np.float32))
