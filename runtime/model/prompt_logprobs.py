"""Log-probabilities of prompt tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.common.upload import upload
from ...kernels.sampling import LOGPROB_FLOOR
from ..messages import Logprobs
from .devices import HostCopies

SLICE_BYTES = 64 << 20
"""maximal bytes of logits in memory at once"""
_LOW = 0xFFFFFFFF


def prompt_logprobs(
    hidden: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    vocab_size: int,
    targets: NDArray[np.int32],
    alternatives: int,
) -> HostCopies:
    """Log-probabilities of targets[i] after the token with hidden state hidden[i], for `report`.

    hidden: [n, hidden size]; head makes float32 logits [n, vocab] of it. It is called on slices.
    """
    size = max(1, SLICE_BYTES // (4 * vocab_size))
    (wanted,) = upload([targets.astype(np.int64)], hidden.device)
    parts = [
        _of_logits(head(states), tokens, alternatives)
        for states, tokens in zip(torch.split(hidden, size), torch.split(wanted, size), strict=True)
    ]
    return HostCopies([torch.cat(tensors) for tensors in zip(*parts, strict=True)])


def report(copies: HostCopies) -> Logprobs | None:
    """Builds the message of the log-probabilities; None if a logit is NaN."""
    chosen, ids, values = (copy.numpy() for copy in copies.wait())
    if np.isnan(chosen).any():
        return None
    return Logprobs(chosen.tobytes(), ids.tobytes(), values.tobytes())


def _of_logits(
    logits: torch.Tensor, targets: torch.Tensor, alternatives: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities of the targets, float32 [n]; ids and values of others, [n, alternatives]."""
    total = logits.logsumexp(-1, keepdim=True)
    ids = _most_likely(logits, alternatives)
    chosen = logits.gather(1, targets[:, None]) - total
    values = logits.gather(1, ids) - total
    return chosen.clamp_min(LOGPROB_FLOOR)[:, 0], ids.int(), values.clamp_min(LOGPROB_FLOOR)


def _most_likely(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the most likely tokens, int64 [n, count], ties by ascending id, which `topk` alone leaves open.

    The key orders by the float's bits, made monotonic, then by the id.
    """
    bits = (logits + 0.0).view(torch.int32)  # adding makes -0.0 equal 0.0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    descending_ids = _LOW - torch.arange(logits.shape[1], device=logits.device)
    return _LOW - (((ordered << 32) | descending_ids).topk(count).values & _LOW)
