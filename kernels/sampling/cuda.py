# mypy: disable-error-code="no-untyped-call"
"""Sampling on CUDA: two launches for greedy rows, three for sampled ones, four where rows are filtered."""

from dataclasses import replace
from typing import NamedTuple

import torch
import triton

from ..automaton.rows import AutomatonRows
from .batch import LOGPROB_FLOOR, Sampled, SamplingBatch
from .filter_cuda import filter_kernel
from .process_cuda import SUB_BLOCK, process_kernel
from .race_cuda import finish_kernel, race_kernel

CHUNK = 4096
TILE = 4096
UNFUSED = {"enable_fp_fusion": False}
"""products and sums then round as on the CPU"""


class _Chunks(NamedTuple):
    """The results of `process_kernel` for each chunk of each row."""

    maxima: torch.Tensor
    leaders: torch.Tensor
    nan: torch.Tensor
    sub_maxima: torch.Tensor | None
    raw: tuple[torch.Tensor | None, ...]  # raw_maxima, raw_sums, top_values and top_ids, or None each
    number: int  # of chunks of a row
    tops: int  # alternatives that are reported

    @property
    def width(self) -> int:
        return int(triton.next_power_of_2(self.number))


def sample(
    logits: torch.Tensor, batch: SamplingBatch, top_logprobs: int | None, out: Sampled | None = None
) -> Sampled:
    """See `sampling.sample`. out: where to write the results."""
    chunks = _new_chunks(logits, batch, top_logprobs)
    x = _process(logits, batch, chunks)
    cuts = _cut(x, batch, chunks)
    scores, winners = _race(x, batch, chunks, cuts)
    result = _new_result(logits, batch, top_logprobs, out)
    finish_kernel[(len(logits),)](
        logits,
        logits.stride(0),
        batch.temperature,
        chunks.maxima,
        chunks.leaders,
        chunks.nan,
        scores,
        winners,
        *chunks.raw,
        chunks.tops,
        chunks.number,
        result.tokens,
        result.bad,
        result.logprobs,
        result.top_ids,
        result.top_logprobs,
        LOGPROB_FLOOR,
        *_automata(batch.automata),
        result.states,
        CHUNKS=chunks.width,
        TOPS=triton.next_power_of_2(max(1, chunks.number * chunks.tops)),
        num_warps=8,
        **UNFUSED,
    )
    return result


def _new_chunks(logits: torch.Tensor, batch: SamplingBatch, top_logprobs: int | None) -> _Chunks:
    rows, vocab = logits.shape
    number, tops = triton.cdiv(vocab, CHUNK), top_logprobs or 0
    raw: tuple[torch.Tensor | None, ...] = (None,) * 4
    if top_logprobs is not None:
        raw = (
            logits.new_empty(rows, number),
            logits.new_empty(rows, number),
            logits.new_empty(rows, number, tops),
            _ints(logits, rows, number, tops),
        )
    return _Chunks(
        maxima=logits.new_empty(rows, number),
        leaders=_ints(logits, rows, number),
        nan=_ints(logits, rows, number),
        sub_maxima=None if _filters(batch)[0] is None else _ints(logits, rows, number * _sub_blocks()),
        raw=raw,
        number=number,
        tops=tops,
    )


def _process(logits: torch.Tensor, batch: SamplingBatch, chunks: _Chunks) -> torch.Tensor:
    """The processed logits: the logits themselves if nothing changes them."""
    rows, vocab = logits.shape
    x = logits if batch.mask is None and not _edits(batch) else logits.new_empty(rows, vocab)
    process_kernel[(rows, chunks.number)](
        logits,
        logits.stride(0),
        vocab,
        *_parts(batch),
        None if x is logits else x,
        chunks.maxima,
        chunks.leaders,
        chunks.nan,
        chunks.sub_maxima,
        *chunks.raw,
        chunks.tops,
        CHUNK=CHUNK,
        num_warps=8,
        **UNFUSED,
    )
    return x


def _cut(x: torch.Tensor, batch: SamplingBatch, chunks: _Chunks) -> torch.Tensor | None:
    """The cuts of the filters, int32 [rows, 2]; None without filters."""
    filters = _filters(batch)
    if all(each is None for each in filters):
        return None
    rows, vocab = x.shape
    cuts, sub_blocks = _ints(x, rows, 2), chunks.number * _sub_blocks()
    filter_kernel[(rows,)](
        x,
        x.stride(0),
        vocab,
        batch.temperature,
        *filters,
        chunks.maxima,
        chunks.number,
        chunks.sub_maxima,
        sub_blocks,
        _ints(x, rows, 2, vocab),
        cuts,
        CHUNKS=chunks.width,
        SUB_BLOCKS=triton.next_power_of_2(sub_blocks),
        TILE=TILE,
        num_warps=16,
        **UNFUSED,
    )
    return cuts


def _race(
    x: torch.Tensor, batch: SamplingBatch, chunks: _Chunks, cuts: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The best score of each chunk and its token; None if every row is greedy."""
    if batch.all_greedy:
        return None, None
    rows, vocab = x.shape
    scores, winners = x.new_empty(rows, chunks.number), _ints(x, rows, chunks.number)
    race_kernel[(rows, chunks.number)](
        x,
        x.stride(0),
        vocab,
        batch.temperature,
        batch.seed,
        batch.position,
        chunks.maxima,
        cuts,
        scores,
        winners,
        CHUNKS=chunks.width,
        CHUNK=CHUNK,
        num_warps=8,
        **UNFUSED,
    )
    return scores, winners


def _new_result(
    logits: torch.Tensor, batch: SamplingBatch, top_logprobs: int | None, out: Sampled | None
) -> Sampled:
    rows = len(logits)
    if out is None:
        states = None if batch.automata is None else _ints(logits, rows)
        out = Sampled(_ints(logits, rows), _ints(logits, rows), None, None, None, states)
    if top_logprobs is None or out.logprobs is not None:
        return out
    return replace(
        out,
        logprobs=logits.new_empty(rows),
        top_ids=_ints(logits, rows, top_logprobs),
        top_logprobs=logits.new_empty(rows, top_logprobs),
    )


def _sub_blocks() -> int:
    """The number of sub-blocks of a chunk."""
    return CHUNK // int(SUB_BLOCK.value)


def _ints(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return like.new_empty(shape, dtype=torch.int32)


def _filters(batch: SamplingBatch) -> tuple[torch.Tensor | None, ...]:
    return (None,) * 3 if batch.all_greedy else (batch.top_k, batch.top_p, batch.min_p)


def _automata(rows: AutomatonRows | None) -> tuple[torch.Tensor | None, ...]:
    return (None,) * 3 if rows is None else (rows.slots, rows.registers, rows.addresses)


def _edits(batch: SamplingBatch) -> bool:
    """Whether anything besides the automata's mask changes logits."""
    parts = (batch.host_mask, batch.banned, batch.bias, batch.penalties)
    return any(part is not None for part in parts)


def _parts(batch: SamplingBatch) -> tuple[torch.Tensor | None, ...]:
    """The kernel's arguments mask_index … output_counts: none of them, a mask only, or all.

    Parts that the batch lacks get values without effect, so that few variants are compiled.
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
