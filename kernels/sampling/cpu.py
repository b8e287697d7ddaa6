"""Sampling on the CPU: PyTorch's computing threads share the rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..automaton import cpu as automaton_cpu
from ..common.threads import thread_count
from . import row_cpu as column
from .batch import GREEDY_BELOW, LOGPROB_FLOOR, Sampled, SamplingBatch

Array = NDArray[Any]


def sample(logits: torch.Tensor, batch: SamplingBatch, top_logprobs: int | None) -> Sampled:
    """logits: float32 [rows, vocab], contiguous"""
    rows, vocab = logits.shape
    count = top_logprobs or 0
    sampled = Sampled(
        torch.empty(rows, dtype=torch.int32),
        torch.empty(rows, dtype=torch.int32),
        None if top_logprobs is None else torch.full((rows,), LOGPROB_FLOOR),
        None if top_logprobs is None else torch.zeros(rows, count, dtype=torch.int32),
        None if top_logprobs is None else torch.full((rows, count), LOGPROB_FLOOR),
    )
    integers, floats = row_integers(batch), row_floats(batch)
    tensors = {
        column.LOGITS: logits,
        column.TOKENS: sampled.tokens,
        column.BAD: sampled.bad,
        column.LOGPROBS: sampled.logprobs,
        column.TOP_IDS: sampled.top_ids,
        column.TOP_LOGPROBS: sampled.top_logprobs,
        **collect_tensors(batch),
    }
    arguments = np.zeros(column.ARGUMENTS, np.int64)
    arguments[column.ROWS], arguments[column.VOCAB] = rows, vocab
    arguments[column.WITH_LOGPROBS], arguments[column.TOPS] = top_logprobs is not None, count
    arguments[column.ROW_INTEGERS] = integers.ctypes.data
    arguments[column.ROW_FLOATS] = floats.ctypes.data
    for place, tensor in tensors.items():
        if tensor is not None:
            assert tensor.is_contiguous()
            arguments[place] = tensor.data_ptr()
    threads = thread_count(logits.numel()) if rows > 1 else 1
    column.sample_rows.run(arguments[column.NEXT + 1 :].tolist(), threads)
    if batch.automata is None:
        return sampled
    return replace(sampled, states=automaton_cpu.advance(batch.automata, sampled.tokens))


def row_integers(batch: SamplingBatch) -> Array:
    """The rows' integer parameters, int64 [rows, `row_cpu.INTEGERS`]."""
    numbers = np.zeros((len(batch.temperature), column.INTEGERS), np.int64)
    numbers[:, column.SEED], numbers[:, column.POSITION] = batch.seed, batch.position
    numbers[:, column.TOP_K] = 0 if batch.top_k is None else batch.top_k
    numbers[:, column.MASK] = -1 if batch.mask is None else batch.mask.index
    numbers[:, column.HOST_MASK] = -1 if batch.host_mask is None else batch.host_mask.index
    numbers[:, column.ENTRY] = -1 if batch.penalties is None else batch.penalties.entry
    numbers[:, column.OFFSET] = 0 if batch.drafts is None else batch.drafts.offsets
    if batch.banned is not None:
        numbers[:, column.BANNED_FROM] = batch.banned.row_start[:-1]
        numbers[:, column.BANNED_TO] = batch.banned.row_start[1:]
    if batch.bias is not None:
        numbers[:, column.BIAS_FROM] = batch.bias.row_start[:-1]
        numbers[:, column.BIAS_TO] = batch.bias.row_start[1:]
    return numbers


def row_floats(batch: SamplingBatch) -> Array:
    """The rows' float parameters, float32 [rows, `row_cpu.FLOATS`]."""
    numbers = np.zeros((len(batch.temperature), column.FLOATS), np.float32)
    temperature = batch.temperature.numpy()
    warm = temperature >= GREEDY_BELOW
    numbers[warm, column.INVERSE] = np.float32(1) / temperature[warm]
    numbers[:, column.TOP_P] = 1 if batch.top_p is None else batch.top_p
    numbers[:, column.MIN_P] = 0 if batch.min_p is None else batch.min_p
    if batch.penalties is not None:
        numbers[:, column.REPETITION] = batch.penalties.repetition
        numbers[:, column.PRESENCE] = batch.penalties.presence
        numbers[:, column.FREQUENCY] = batch.penalties.frequency
    return numbers


def collect_tensors(batch: SamplingBatch) -> dict[int, torch.Tensor]:
    """The batch's tensors that the kernel reads, each by its index in `row_cpu`'s arguments."""
    parts = {}
    if batch.mask is not None:
        parts[column.MASK_BITS] = batch.mask.bits
    if batch.host_mask is not None:
        parts[column.HOST_MASK_BITS] = batch.host_mask.bits
    if batch.banned is not None:
        parts[column.BANNED_IDS] = batch.banned.ids
    if batch.bias is not None:
        parts |= {column.BIAS_IDS: batch.bias.ids, column.BIAS_VALUES: batch.bias.values}
    if batch.penalties is not None:
        parts[column.PROMPT_SEEN] = batch.penalties.prompt_seen
        parts[column.OUTPUT_COUNTS] = batch.penalties.output_counts
    if batch.drafts is not None:
        parts[column.DRAFTS] = batch.drafts.tokens
    return parts
