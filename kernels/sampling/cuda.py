# mypy: disable-error-code="no-untyped-call"
"""Sampling on CUDA: two launches for greedy rows, three for sampled ones, four where rows are filtered."""

from dataclasses import replace

import torch
import triton

from .batch import LOGPROB_FLOOR, AutomatonRows, Sampled, SamplingBatch
from .filter_cuda import filter_kernel
from .process_cuda import SUB_BLOCK, process_kernel
from .race_cuda import finish_kernel, race_kernel

CHUNK = 4096
TILE = 4096
UNFUSED = {"enable_fp_fusion": False}
"""so that products and sums round as on the CPU"""


def sample(
    logits: torch.Tensor, batch: SamplingBatch, top_logprobs: int | None, out: Sampled | None = None
) -> Sampled:
    """See `sampling.sample`. out: where to write tokens, bad and states."""
    rows, vocab = logits.shape
    chunks = triton.cdiv(vocab, CHUNK)
    width = triton.next_power_of_2(chunks)
    sub_blocks = chunks * (CHUNK // SUB_BLOCK.value)
    count = top_logprobs or 0

    def floats(*shape: int) -> torch.Tensor:
        return logits.new_empty(shape)

    def ints(*shape: int) -> torch.Tensor:
        return logits.new_empty(shape, dtype=torch.int32)

    filters = (None, None, None) if batch.all_greedy else (batch.top_k, batch.top_p, batch.min_p)
    maxima, leaders, nan = floats(rows, chunks), ints(rows, chunks), ints(rows, chunks)
    sub_maxima = None if filters[0] is None else ints(rows, sub_blocks)
    raw_parts: tuple[torch.Tensor | None, ...] = (None,) * 4
    logprobs = top_ids = top_values = None
    if top_logprobs is not None:
        raw_parts = (
            floats(rows, chunks),
            floats(rows, chunks),
            floats(rows, chunks, count),
            ints(rows, chunks, count),
        )
        logprobs, top_ids, top_values = floats(rows), ints(rows, count), floats(rows, count)
    x = logits if batch.mask is None and not _edits(batch) else floats(rows, vocab)
    process_kernel[(rows, chunks)](
        logits,
        logits.stride(0),
        vocab,
        *_parts(batch),
        None if x is logits else x,
        maxima,
        leaders,
        nan,
        sub_maxima,
        *raw_parts,
        count,
        CHUNK=CHUNK,
        num_warps=8,
        **UNFUSED,
    )
    cuts = scores = winners = None
    if any(f is not None for f in filters):
        cuts = ints(rows, 2)
        filter_kernel[(rows,)](
            x,
            x.stride(0),
            vocab,
            batch.temperature,
            *filters,
            maxima,
            chunks,
            sub_maxima,
            sub_blocks,
            ints(rows, 2, vocab),
            cuts,
            CHUNKS=width,
            SUB_BLOCKS=triton.next_power_of_2(sub_blocks),
            TILE=TILE,
            num_warps=16,
            **UNFUSED,
        )
    if not batch.all_greedy:
        scores, winners = floats(rows, chunks), ints(rows, chunks)
        race_kernel[(rows, chunks)](
            x,
            x.stride(0),
            vocab,
            batch.temperature,
            batch.seed,
            batch.position,
            maxima,
            cuts,
            scores,
            winners,
            CHUNKS=width,
            CHUNK=CHUNK,
            num_warps=8,
            **UNFUSED,
        )
    if out is None:
        states = None if batch.automata is None else ints(rows)
        out = Sampled(ints(rows), logits.new_empty(rows, dtype=torch.bool), None, None, None, states)
    finish_kernel[(rows,)](
        logits,
        logits.stride(0),
        batch.temperature,
        maxima,
        leaders,
        nan,
        scores,
        winners,
        *raw_parts,
        count,
        chunks,
        out.tokens,
        out.bad,
        logprobs,
        top_ids,
        top_values,
        LOGPROB_FLOOR,
        *_automata(batch.automata),
        out.states,
        CHUNKS=width,
        TOPS=triton.next_power_of_2(max(1, chunks * count)),
        num_warps=8,
        **UNFUSED,
    )
    return replace(out, logprobs=logprobs, top_ids=top_ids, top_logprobs=top_values)


def _automata(rows: AutomatonRows | None) -> tuple[torch.Tensor | None, ...]:
    return (None,) * 3 if rows is None else (rows.slots, rows.registers, rows.addresses)


def _edits(batch: SamplingBatch) -> bool:
    """Whether anything but the mask that is made on the device changes logits."""
    parts = (batch.host_mask, batch.banned, batch.bias, batch.penalties)
    return any(part is not None for part in parts)


def _parts(batch: SamplingBatch) -> tuple[torch.Tensor | None, ...]:
    """From mask_index to output_counts: nothing, a mask only, or all, of which some may say nothing.

    So there are few variants to compile.
    """
    if not _edits(batch):
        mask = (None, None) if batch.mask is None else (batch.mask.index, batch.mask.bits)
        return *mask, *(None,) * 13
    return _every_part(batch)


def _every_part(batch: SamplingBatch) -> tuple[torch.Tensor, ...]:
    rows, unread = len(batch.seed), batch.temperature
    none = batch.position.new_full((rows,), -1)
    starts = batch.position.new_zeros(rows + 1)
    masks = [(none, none) if m is None else (m.index, m.bits) for m in (batch.mask, batch.host_mask)]
    banned = (starts, none) if batch.banned is None else (batch.banned.row_start, batch.banned.ids)
    bias, penalties = (starts, none, unread), (none, unread, unread, unread, none, none)
    if batch.bias is not None:
        bias = (batch.bias.row_start, batch.bias.ids, batch.bias.values)
    if batch.penalties is not None:
        p = batch.penalties
        penalties = (p.entry, p.repetition, p.presence, p.frequency, p.prompt_seen, p.output_counts)
    return *masks[0], *masks[1], *banned, *bias, *penalties
