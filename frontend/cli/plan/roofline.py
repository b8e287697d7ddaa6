"""The least time of a step on a device: its bytes at the full bandwidth or its operations at the full rate,
whichever takes longer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from ....runtime.model.decoder_config import DecoderConfig
from ....runtime.scheduler.step_records import StepWork
from .weights import matrix_parameters


class Rates(NamedTuple):
    bandwidth: float
    """bytes a second"""
    operations: float
    """floating-point operations a second"""


class Work(NamedTuple):
    """A model on a device. `step_bytes` are read from the weights in a step of many tokens; `expert_bytes` of
    them are those of the experts. `token_bytes` is a token's KV cache in all layers."""

    config: DecoderConfig
    step_bytes: int
    expert_bytes: int
    token_bytes: int

    def decode_tokens_per_s(self, rates: Rates, batch: int, context: int) -> float:
        """Tokens a second of `batch` requests together, each with `context` tokens in the cache."""
        attended = _count_attended(self.config, context)
        read = self._weight_bytes(batch) + batch * self.token_bytes / len(self.config.layers) * attended
        layers, head = matrix_parameters(self.config)
        operations = batch * (2 * (layers + head) + _attention_operations(self.config, attended))
        return batch / max(read / rates.bandwidth, operations / rates.operations)

    def prefill_tokens_per_s(self, rates: Rates, tokens: int) -> float:
        """Prompt tokens a second of one prompt of `tokens` tokens, of which none is cached."""
        attended = sum(_sum_attended(tokens, layer.window or tokens) for layer in self.config.layers)
        layers, head = matrix_parameters(self.config)
        operations = 2 * layers * tokens + 2 * head + _attention_operations(self.config, attended)
        moved = self._weight_bytes(tokens) + self.token_bytes * tokens
        return tokens / max(moved / rates.bandwidth, operations / rates.operations)

    def make_step_cost(self, rates: Rates) -> Callable[[StepWork], float]:
        """The milliseconds of a step of prompts and of rows in decode, each with a mean context."""
        layers, head = matrix_parameters(self.config)
        attention = _attention_operations(self.config, 1)
        windows = Counter(self.config.cache_spec.windows)

        def count_attended(tokens: int, context: int) -> int:
            """Tokens that new tokens attend to together, summed over the layers."""
            if not tokens:
                return 0
            mean = context // tokens
            reached = (
                count * (mean if reach is None else min(reach, mean)) for reach, count in windows.items()
            )
            return tokens * sum(reached)

        def measure_ms(step: StepWork) -> float:
            read = count_attended(step.rows, step.context)
            attended = read + count_attended(step.prefill, step.pairs)
            tokens = step.prefill + step.rows
            moved = self._weight_bytes(tokens) + self.token_bytes * (
                read / len(self.config.layers) + step.prefill
            )
            operations = 2 * layers * tokens + 2 * head * max(1, step.rows)
            operations += attention * attended
            return 1e3 * max(moved / rates.bandwidth, operations / rates.operations)

        return measure_ms

    def _weight_bytes(self, tokens: int) -> float:
        """The bytes that a step of this many tokens reads: of the experts, only those that a token has. The
        estimate is that a router chooses each expert equally often."""
        experts = next((layer.experts for layer in self.config.layers if layer.experts is not None), None)
        if experts is None:
            return self.step_bytes
        unread = (1 - experts.per_token / experts.count) ** tokens
        return self.step_bytes - self.expert_bytes * unread


def _count_attended(config: DecoderConfig, context: int) -> int:
    """Tokens that a new token attends to, summed over the layers."""
    windows = config.cache_spec.windows
    return sum(context if window is None else min(window, context) for window in windows)


def _sum_attended(tokens: int, window: int) -> int:
    """The tokens to which the first `tokens` tokens attend in one layer, summed."""
    growing = min(tokens, window)
    return growing * (growing + 1) // 2 + (tokens - growing) * window


def _attention_operations(config: DecoderConfig, attended: int) -> int:
    """Operations for the products with the attended tokens' keys and values in all heads."""
    spec = config.cache_spec
    return 4 * spec.heads * spec.head_dim * attended


def cost_per_million(tokens_per_s: float, price_per_hour: float) -> float:
    return price_per_hour / 3600 / tokens_per_s * 1e6
