"""Sampling of the next token: processing of the logits, choice, and log-probabilities in one call.

The order is vLLM's. Log-probabilities are of the raw logits. Then: masks and banned tokens, logit bias,
repetition, frequency and presence penalties, temperature, min-p, top-k, top-p (over the probabilities that
min-p and top-k left, renormalised), choice.

The filters keep a prefix of the tokens in order of falling logit, equal logits in order of rising id. top-k
keeps exactly k tokens; top-p the shortest prefix whose probability reaches p, never less than one token.
Probabilities are summed as integers (units of 2^-40 of the largest), so the sums don't depend on their order.

The choice is the Gumbel-max trick: argmax of (logit - largest) / temperature + g with g = -log(-log(1 - u))
and u = (w + 1/2) / 2^32, where w is the first word of Philox4x32-10 with the row's seed as key and counter
(output position, token id, 0, 0). So a token depends on its row's logits, parameters, seed and position only.
"""

import torch

from ..automaton.rows import AutomatonRows, TokenMask
from .batch import GREEDY_BELOW, LOGPROB_FLOOR, BannedTokens, LogitBias, Penalties, Sampled, SamplingBatch

__all__ = [
    "GREEDY_BELOW",
    "LOGPROB_FLOOR",
    "AutomatonRows",
    "BannedTokens",
    "LogitBias",
    "Penalties",
    "Sampled",
    "SamplingBatch",
    "TokenMask",
    "sample",
]


def sample(logits: torch.Tensor, batch: SamplingBatch, top_logprobs: int | None = None) -> Sampled:
    """Sample one token for each row of logits [rows, vocab] (rows may be strided): float32, or half precision
    on CUDA.

    top_logprobs: the number of most likely tokens whose log-probabilities are returned in addition to the
    sampled token's; None: no log-probabilities. Bad logits raise no exception: see `Sampled.bad`.
    """
    assert logits.is_floating_point() and logits.dim() == 2, (logits.dtype, logits.shape)
    assert logits.stride(1) == 1 or logits.shape[1] == 1, logits.stride()
    if logits.is_cuda:
        from . import cuda

        return cuda.sample(logits, batch, top_logprobs)
    from . import cpu

    assert logits.dtype == torch.float32, logits.dtype
    return cpu.sample(logits.contiguous(), batch, top_logprobs)
