"""How far the predictions of one model are from those of another."""

from __future__ import annotations

from typing import NamedTuple

import torch

SLICE = 256
"""positions that are compared at once, in float64"""


class Divergence(NamedTuple):
    perplexity: float
    kl_mean: float
    """nats for each position"""
    kl_p99: float
    top1: float
    """share of positions with the same most likely token"""


def divergence(reference: torch.Tensor, measured: torch.Tensor, targets: torch.Tensor) -> Divergence:
    """KL(reference ‖ measured), and the measured model's perplexity on `targets`, int64 [n].

    reference, measured: float32 [n, vocab] of log-probabilities.
    """
    kl = torch.cat(
        [_kl(*pair) for pair in zip(torch.split(reference, SLICE), torch.split(measured, SLICE), strict=True)]
    ).sort()[0]
    losses = -measured.gather(1, targets[:, None]).double()
    same = reference.argmax(1) == measured.argmax(1)
    return Divergence(
        perplexity=float(losses.mean().exp()),
        kl_mean=float(kl.mean()),
        kl_p99=float(kl[min(len(kl) - 1, len(kl) * 99 // 100)]),
        top1=float(same.double().mean()),
    )


def _kl(reference: torch.Tensor, measured: torch.Tensor) -> torch.Tensor:
    """Normalised again, because float32 rounds the sum of the probabilities to 1 ± 1e-6."""
    exact, other = (logprobs.double().log_softmax(1) for logprobs in (reference, measured))
    return (exact.exp() * (exact - other)).sum(1).clamp_min(0)
