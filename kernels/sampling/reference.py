"""Sampling in plain PyTorch, one row at a time: the definition against which the kernels are tested."""

import math

import torch

from ..automaton.rows import TokenMask
from . import philox
from .batch import (
    GREEDY_BELOW,
    LOGPROB_FLOOR,
    NOT_A_NUMBER,
    NOTHING_ALLOWED,
    Penalties,
    Sampled,
    SamplingBatch,
)

MASS_UNIT = 2.0**40


def sample(logits: torch.Tensor, batch: SamplingBatch, top_logprobs: int | None) -> Sampled:
    rows = logits.shape[0]
    processed = [process(logits[row], batch, row) for row in range(rows)]
    bad = torch.tensor([_reason(logits[row], processed[row]) for row in range(rows)], dtype=torch.int32)
    tokens = torch.tensor([0 if bad[row] else choose(processed[row], batch, row) for row in range(rows)])
    sampled = Sampled(tokens.int(), bad, None, None, None)
    return sampled if top_logprobs is None else _with_logprobs(sampled, logits, top_logprobs)


def process(logits: torch.Tensor, batch: SamplingBatch, row: int) -> torch.Tensor:
    """The row's logits [vocab] after masks, banned tokens, bias and penalties."""
    x = logits.clone()
    for mask in (batch.mask, batch.host_mask):
        if mask is not None and mask.index[row] >= 0:
            x[~_allowed(mask, row, len(x))] = -math.inf
    if batch.banned is not None:
        start, end = batch.banned.row_start[row : row + 2].tolist()
        x[batch.banned.ids[start:end].long()] = -math.inf
    if batch.bias is not None:
        start, end = batch.bias.row_start[row : row + 2].tolist()
        x[batch.bias.ids[start:end].long()] += batch.bias.values[start:end]
    if batch.penalties is not None and batch.penalties.entry[row] >= 0:
        x = _penalise(x, batch.penalties, row)
    return x


def choose(x: torch.Tensor, batch: SamplingBatch, row: int) -> int:
    """Token id chosen from processed logits x [vocab] with a finite maximum."""
    temperature = float(batch.temperature[row])
    order = torch.argsort(x, descending=True, stable=True)
    if temperature < GREEDY_BELOW:
        return int(order[0])
    distance = (x[order] - x[order[0]]) * (1 / batch.temperature[row])
    kept = order[: _prefix_length(distance, batch, row)]
    scores = distance[: len(kept)].double() + gumbel(int(batch.seed[row]), int(batch.position[row]), kept)
    best = kept[scores == scores.max()]
    return int(best.min())


def gumbel(seed: int, position: int, tokens: torch.Tensor) -> torch.Tensor:
    """Gumbel noise, float64 [n], of token ids [n]."""
    words = torch.from_numpy(philox.first_words(seed, position, tokens.numpy()).astype("float64"))
    return -torch.log(-torch.log1p(-(words + 0.5) * 2.0**-32))


def unpack_bits(words: torch.Tensor, size: int) -> torch.Tensor:
    """bool [..., size] from int32 [..., ceil(size / 32)], lowest bit first."""
    bits = (words.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32)) & 1
    return bits.flatten(-2)[..., :size].bool()


def _allowed(mask: TokenMask, row: int, vocab: int) -> torch.Tensor:
    return unpack_bits(mask.bits[int(mask.index[row])], vocab)


def _penalise(x: torch.Tensor, penalties: Penalties, row: int) -> torch.Tensor:
    entry = int(penalties.entry[row])
    counts = penalties.output_counts[entry]
    seen = unpack_bits(penalties.prompt_seen[entry], len(x)) | (counts > 0)
    repetition = penalties.repetition[row]
    x = torch.where(seen, torch.where(x > 0, x / repetition, x * repetition), x)
    x = x - penalties.frequency[row] * counts
    return x - penalties.presence[row] * (counts > 0)


def _prefix_length(distance: torch.Tensor, batch: SamplingBatch, row: int) -> int:
    """The number of tokens that the filters keep; distance [vocab] ≤ 0 is (logit - largest) / temperature,
    descending."""
    length = int((distance > -math.inf).sum())
    if batch.min_p is not None and batch.min_p[row] > 0:
        length = int((distance >= torch.log(batch.min_p[row])).sum())
    if batch.top_k is not None and batch.top_k[row] > 0:
        length = min(length, int(batch.top_k[row]))
    if batch.top_p is not None and batch.top_p[row] < 1:
        mass = (torch.exp(distance[:length]) * MASS_UNIT).long()
        target = int(batch.top_p[row].double() * mass.sum())
        length = int((mass.cumsum(0) < max(1, target)).sum()) + 1
    return length


def _reason(raw: torch.Tensor, processed: torch.Tensor) -> int:
    if bool(raw.isnan().any()):
        return NOT_A_NUMBER
    return 0 if bool(processed.max().isfinite()) else NOTHING_ALLOWED


def _with_logprobs(sampled: Sampled, logits: torch.Tensor, count: int) -> Sampled:
    logprobs = torch.log_softmax(logits, dim=-1).nan_to_num(nan=LOGPROB_FLOOR).clamp_min(LOGPROB_FLOOR)
    chosen = logprobs.gather(1, sampled.tokens.long().unsqueeze(1)).squeeze(1)
    order = torch.argsort(logits.nan_to_num(nan=-math.inf), dim=-1, descending=True, stable=True)[:, :count]
    return Sampled(sampled.tokens, sampled.bad, chosen, order.int(), logprobs.gather(1, order))
