"""The least time of a step on a device: its bytes at the full bandwidth or its operations at the full rate,
whichever takes longer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ....runtime.model.decoder_config import DecoderConfig
from ....runtime.scheduler.step_records import StepWork
from .weights import matrix_parameters


class Rates(NamedTuple):
    bandwidth: float
    """bytes a second"""
    operations: float
    """floating-point operations a second"""


@dataclass(frozen=True)
class Work:
    """A model on a device. `step_bytes` are read from the weights in a step of many tokens; `expert_bytes` of
    them are those of the experts. `token_bytes` is a token's KV cache in all layers."""

    config: DecoderConfig
    step_bytes: int
    expert_bytes: int
    token_bytes: int

    def decode_tokens_per_s(self, rates: Rates, batch: int, context: int) -> float:
        """Tokens a second of `batch` requests together, each with `context` tokens in the cache."""
        attended = self._count_attended(context)
        read = self._weight_bytes(batch) + batch * self.token_bytes / len(self.config.layers) * attended
        layers, head = self._parameters
        operations = batch * (2 * (layers + head) + self._count_attention(attended))
        return batch / max(read / rates.bandwidth, operations / rates.operations)

    def prefill_tokens_per_s(self, rates: Rates, tokens: int) -> float:
        """Prompt tokens a second of one prompt of `tokens` tokens, of which none is cached."""
        attended = sum(_sum_attended(tokens, layer.window or tokens) for layer in self.config.layers)
        layers, head = self._parameters
        operations = 2 * layers * tokens + 2 * head + self._count_attention(attended)
        moved = self._weight_bytes(tokens) + self.token_bytes * tokens
        return tokens / max(moved / rates.bandwidth, operations / rates.operations)

    def step_ms(self, rates: Rates, step: StepWork) -> float:
        """Milliseconds of a step of prompts and of rows in decode, each with a mean context."""
        attended = sum(
            tokens * self._count_attended(attended // tokens)
            for tokens, attended in ((step.rows, step.context), (step.prefill, step.pairs))
            if tokens
        )
        read = self._count_attended(step.context // step.rows) * step.rows if step.rows else 0
        layers, head = self._parameters
        tokens = step.prefill + step.rows
        moved = self._weight_bytes(tokens) + self.token_bytes * (
            read / len(self.config.layers) + step.prefill
        )
        operations = 2 * layers * tokens + 2 * head * max(1, step.rows)
        operations += self._count_attention(attended)
        return 1e3 * max(moved / rates.bandwidth, operations / rates.operations)

    @cached_property
    def _parameters(self) -> tuple[int, int]:
        return matrix_parameters(self.config)

    @cached_property
    def _windows(self) -> Counter[int | None]:
        """How many layers have each window."""
        return Counter(self.config.cache_spec.windows)

    def _weight_bytes(self, tokens: int) -> float:
        """The bytes that a step of this many tokens reads: of the experts, only those that a token has. The
        estimate is that a router chooses each expert equally often."""
        experts = next((layer.experts for layer in self.config.layers if layer.experts is not None), None)
        if experts is None:
            return self.step_bytes
        unread = (1 - experts.per_token / experts.count) ** tokens
        return self.step_bytes - self.expert_bytes * unread

    def _count_attended(self, context: int) -> int:
        """Tokens that a new token attends to, summed over the layers."""
        return sum(
            layers * (context if window is None else min(window, context))
            for window, layers in self._windows.items()
        )

    def _count_attention(self, attended: int) -> int:
        """Operations for the products with the attended tokens' keys and values in all heads."""
        first = self.config.layers[0]
        return 4 * first.heads * first.head_dim * attended


def _sum_attended(tokens: int, window: int) -> int:
    """The tokens to which the first `tokens` tokens attend in one layer, summed."""
    growing = min(tokens, window)
    return growing * (growing + 1) // 2 + (tokens - growing) * window


def cost_per_million(tokens_per_s: float, price_per_hour: float) -> float:
    return price_per_hour / 3600 / tokens_per_s * 1e6
