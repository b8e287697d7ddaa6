"""The figures of a simulated fleet."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from .workload import Arrival

PERCENTILES = (50, 90, 99)


@dataclass(slots=True)
class Served:
    """The progress of a request. Times are in seconds since the start."""

    replica: int = -1
    cached: int = 0  # tokens of the prompt that the replica had
    tokens: int = 0  # tokens of the reply that the client has got
    first_at: float = 0.0
    last_at: float = 0.0
    ends: int = 0  # how often its reply has ended
    is_refused: bool = False


class Usage(NamedTuple):
    """How much of a replica was used."""

    busy_s: float
    """seconds in which a step ran"""
    used_s: float
    """the same seconds, each times the share of the pages that belonged to running requests"""
    prefilled: int = 0
    """tokens that the replica has computed for decode replicas"""


class Percentiles(msgspec.Struct, frozen=True):
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float] | array[float]) -> Percentiles:
        return cls(*(np.percentile(values, PERCENTILES).tolist() if len(values) else (0.0, 0.0, 0.0)))


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Rates count from the first arrival to the last token."""

    requests: int
    refused: int
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: Percentiles
    """from a request's arrival to its first token"""
    itl_s: Percentiles
    """between two tokens of a reply"""
    kv_in_use: float
    """share of the pages that belong to running requests, while a step runs"""
    busy: float
    """share of the time in which a replica runs a step"""
    busiest: float
    """the work of the replica with most of it, as a multiple of the mean"""
    prefill_s: Percentiles | None = None
    """until a prompt's pages had come from a prefill replica; None: replicas compute their prompts"""

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """Tokens of prompts and replies."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds

    @property
    def hit_share(self) -> float:
        return self.cached_tokens / max(1, self.prompt_tokens)

    @classmethod
    def of(
        cls,
        arrivals: Sequence[Arrival],
        served: Sequence[Served],
        gaps_s: array[float],
        usage: Sequence[Usage],
        prefill_s: array[float] | None = None,
    ) -> Figures:
        """prefill_s: see the field"""
        answered = [(a, s) for a, s in zip(arrivals, served, strict=True) if not s.is_refused]
        seconds = max(1e-9, max((s.last_at for _, s in answered), default=0.0) - arrivals[0].at)
        busy = [each.busy_s for each in usage]
        # The server counts what a prefill server has computed as cached.
        prefilled = sum(each.prefilled for each in usage)
        return cls(
            requests=len(answered),
            refused=len(served) - len(answered),
            seconds=seconds,
            prompt_tokens=sum(a.length for a, _ in answered),
            cached_tokens=max(0, sum(s.cached for _, s in answered) - prefilled),
            output_tokens=sum(s.tokens for _, s in answered),
            ttft_s=Percentiles.of([s.first_at - a.at for a, s in answered]),
            itl_s=Percentiles.of(gaps_s),
            kv_in_use=sum(each.used_s for each in usage) / max(1e-9, sum(busy)),
            busy=sum(busy) / len(busy) / seconds,
            busiest=max(busy) * len(busy) / max(1e-9, sum(busy)),
            prefill_s=None if prefill_s is None else Percentiles.of(prefill_s),
        )
