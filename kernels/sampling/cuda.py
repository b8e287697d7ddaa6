"""Sampling on CUDA: two launches for greedy rows, three for sampled ones, eight where rows are filtered.

One more launch stores the registers of automata."""

from dataclasses import replace
from typing import NamedTuple

import torch
import triton

from ..automaton.cuda import keep_kernel
from ..automaton.layout import REGISTERS
from .batch import LOGPROB_FLOOR, Sampled, SamplingBatch
from .cut_cuda import cut_kernel
from .filter_cuda import bound_kernel, boundary_kernel, gather_kernel, weigh_kernel
from .process_cuda import SUB_BLOCK, process_kernel
from .race_cuda import finish_kernel, race_kernel

CHUNK = 4096
STRETCH = 2048
"""tokens that one program of the race or of the filters reads"""
TILE = 512
"""listed tokens that the cut reads at a time, in registers"""
RACE_TILE = 256
"""listed tokens that race at a time"""
BUCKETS = 1024
"""buckets of the histogram of distances from the largest logit"""
SAMPLES = 2048
"""sampled tokens that determine which distances a row's buckets cover"""
UNFUSED = {"enable_fp_fusion": False}
"""without fused multiply-add, products and sums round as on the CPU"""


class _Chunks(NamedTuple):
    """The results of `process_kernel` for each chunk of each row."""

    maxima: torch.Tensor
    leaders: torch.Tensor
    nan: torch.Tensor
    sub_maxima: torch.Tensor | None
    raw: tuple[torch.Tensor | None, ...]
    """raw_maxima, raw_sums, top_values and top_ids, or None each"""
    number: int
    """number of chunks in a row"""
    tops: int
    """number of reported alternatives"""

    @property
    def width(self) -> int:
        return int(triton.next_power_of_2(self.number))


def sample(
    logits: torch.Tensor, batch: SamplingBatch, top_logprobs: int | None, out: Sampled | None = None
) -> Sampled:
    """out: where to write the results, or None"""
    chunks = _new_chunks(logits, batch, top_logprobs)
    x = _process(logits, batch, chunks)
    race = _race(x, batch, chunks, _filter(x, batch, chunks))
    result = _new_result(logits, batch, top_logprobs, out)
    automata = batch.automata
    stepped = None if automata is None else _ints(logits, len(logits), REGISTERS)
    finish_kernel[(len(logits),)](
        logits,
        logits.stride(0),
        batch.temperature,
        chunks.maxima,
        chunks.leaders,
        chunks.nan,
        race.scores,
        race.winners,
        *chunks.raw,
        chunks.tops,
        chunks.number,
        race.parts,
        result.tokens,
        result.bad,
        result.logprobs,
        result.top_ids,
        result.top_logprobs,
        LOGPROB_FLOOR,
        *((None,) * 3 if automata is None else (automata.slots, automata.registers, automata.addresses)),
        stepped,
        result.states,
        CHUNKS=chunks.width,
        PARTS=triton.next_power_of_2(race.parts),
        TOPS=triton.next_power_of_2(max(1, chunks.number * chunks.tops)),
        num_warps=8,
        **UNFUSED,
    )
    if automata is not None:
        keep_kernel[(len(logits),)](automata.slots, stepped, automata.registers, num_warps=1)
    return result


def _new_chunks(logits: torch.Tensor, batch: SamplingBatch, top_logprobs: int | None) -> _Chunks:
    rows, vocab = logits.shape
    number, tops = triton.cdiv(vocab, CHUNK), top_logprobs or 0
    raw: tuple[torch.Tensor | None, ...] = (None,) * 4
    if top_logprobs is not None:
        raw = (
            _floats(logits, rows, number),
            _floats(logits, rows, number),
            _floats(logits, rows, number, tops),
            _ints(logits, rows, number, tops),
        )
    return _Chunks(
        maxima=_floats(logits, rows, number),
        leaders=_ints(logits, rows, number),
        nan=_ints(logits, rows, number),
        sub_maxima=None if not _is_filtered(batch) else _ints(logits, rows, number * _sub_blocks()),
        raw=raw,
        number=number,
        tops=tops,
    )


class _Filtered(NamedTuple):
    """What the filters keep of each row, as `cut_kernel` and the kernels of `filter_cuda` write it."""

    bounds: torch.Tensor
    lengths: torch.Tensor
    listed: torch.Tensor
    cuts: torch.Tensor


class _Race(NamedTuple):
    """Each part's best score and its token, [rows, parts]; None if all rows are greedy."""

    scores: torch.Tensor | None
    winners: torch.Tensor | None
    parts: int


class _Processed(NamedTuple):
    """Logits from which `load_processed` reads the processed ones."""

    values: torch.Tensor
    """[rows, vocab]"""
    mask: tuple[torch.Tensor | None, torch.Tensor | None]
    """index and bits of a mask that the reader has to apply; (None, None): no mask"""

    @property
    def arguments(self) -> tuple[torch.Tensor | int | None, ...]:
        return self.values, self.values.stride(0), self.values.shape[1], *self.mask


def _process(logits: torch.Tensor, batch: SamplingBatch, chunks: _Chunks) -> _Processed:
    """Processes the logits. Writes them only if something besides the automata's mask changes them."""
    rows, vocab = logits.shape
    parts = _parts(batch)
    if _edits(batch):
        x = _Processed(_floats(logits, rows, vocab), (None, None))
    else:
        x = _Processed(logits, (parts[0], parts[1]))
    process_kernel[(rows, chunks.number)](
        logits,
        logits.stride(0),
        vocab,
        *parts,
        None if x.values is logits else x.values,
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


def _filter(x: _Processed, batch: SamplingBatch, chunks: _Chunks) -> _Filtered | None:
    """Filters the processed logits. Returns None if no row has a filter."""
    if not _is_filtered(batch):
        return None
    rows, vocab = x.values.shape
    top_k, top_p, min_p = _every_filter(batch)
    ranges, sub_blocks = _floats(x.values, rows, 2), chunks.number * _sub_blocks()
    weights = x.values.new_empty(rows, BUCKETS, dtype=torch.int64)
    targets = x.values.new_empty(rows, dtype=torch.int64)
    result = _Filtered(
        bounds=_ints(x.values, rows, 3),
        lengths=_ints(x.values, rows, 2),
        listed=_ints(x.values, rows, 2, vocab),
        cuts=_ints(x.values, rows, 2),
    )
    of_rows, placed = (chunks.maxima, chunks.number), (result.bounds, ranges, weights)
    lists, stretches = (result.lengths, result.listed), (rows, triton.cdiv(vocab, STRETCH))
    sizes = {"CHUNKS": chunks.width, "BUCKETS": BUCKETS, "num_warps": 8, **UNFUSED}
    bound_kernel[(rows,)](
        *x.arguments,
        batch.temperature,
        top_k,
        top_p,
        min_p,
        *of_rows,
        chunks.sub_maxima,
        sub_blocks,
        result.bounds,
        ranges,
        result.lengths,
        weights,
        SUB_BLOCKS=triton.next_power_of_2(sub_blocks),
        SAMPLES=SAMPLES,
        **sizes,
    )
    weigh_kernel[stretches](*x.arguments, batch.temperature, *of_rows, *placed, STRETCH=STRETCH, **sizes)
    boundary_kernel[(rows,)](batch.temperature, top_p, *of_rows, *placed, targets, **sizes)
    gather_kernel[stretches](
        *x.arguments, *of_rows, result.bounds, *lists, STRETCH=STRETCH, CHUNK=CHUNK, num_warps=4
    )
    cut_kernel[(rows,)](
        vocab,
        batch.temperature,
        top_k,
        top_p,
        *of_rows,
        result.bounds,
        targets,
        *lists,
        result.cuts,
        CHUNKS=chunks.width,
        TILE=TILE,
        num_warps=4,
        **UNFUSED,
    )
    return result


def _race(x: _Processed, batch: SamplingBatch, chunks: _Chunks, filtered: _Filtered | None) -> _Race:
    if batch.all_greedy:
        return _Race(None, None, 1)
    rows, vocab = x.values.shape
    grid = (rows, triton.cdiv(vocab, STRETCH))
    scores, winners = _floats(x.values, *grid), _ints(x.values, *grid)
    race_kernel[grid](
        *x.arguments,
        batch.temperature,
        batch.seed,
        batch.position,
        chunks.maxima,
        chunks.leaders,
        chunks.number,
        *((None,) * 4 if filtered is None else filtered),
        scores,
        winners,
        CHUNKS=chunks.width,
        CHUNK=CHUNK,
        STRETCH=STRETCH,
        TILE=RACE_TILE,
        num_warps=4,
        **UNFUSED,
    )
    return _Race(scores, winners, grid[1])


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
        logprobs=_floats(logits, rows),
        top_ids=_ints(logits, rows, top_logprobs),
        top_logprobs=_floats(logits, rows, top_logprobs),
    )


def _sub_blocks() -> int:
    """The number of sub-blocks of a chunk."""
    return CHUNK // int(SUB_BLOCK.value)


def _ints(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return like.new_empty(shape, dtype=torch.int32)


def _floats(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def _is_filtered(batch: SamplingBatch) -> bool:
    filters = (batch.top_k, batch.top_p, batch.min_p)
    return not batch.all_greedy and any(each is not None for each in filters)


def _every_filter(batch: SamplingBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """top_k, top_p and min_p, with values without effect where the batch lacks one."""
    return (
        batch.position.new_zeros(len(batch.seed)) if batch.top_k is None else batch.top_k,
        torch.ones_like(batch.temperature) if batch.top_p is None else batch.top_p,
        torch.zeros_like(batch.temperature) if batch.min_p is None else batch.min_p,
    )


def _edits(batch: SamplingBatch) -> bool:
    """Whether a host mask, ban, bias or penalty changes logits."""
    parts = (batch.host_mask, batch.banned, batch.bias, batch.penalties)
    return any(part is not None for part in parts)


def _parts(batch: SamplingBatch) -> tuple[torch.Tensor | None, ...]:
    """The kernel's arguments mask_index … drafts: all None, only a mask, or all present, but drafts only in
    batches that have some.

    Parts that the batch lacks get values without effect, so that few variants are compiled.
    """
    if not _edits(batch):
        mask = (None, None) if batch.mask is None else (batch.mask.index, batch.mask.bits)
        return *mask, *(None,) * 15
    drafts = (None, None) if batch.drafts is None else (batch.drafts.offsets, batch.drafts.tokens)
    return *_every_part(batch), *drafts


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
