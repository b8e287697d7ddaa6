"""Attention in both directions over the tokens of several inputs that lie one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

NAME = "arbora_encoder"
"""the attention implementation's name in a model's config"""
_UNSERVED = ("attention_mask", "position_bias", "softcap", "s_aux", "sinks")
"""arguments that change the result and that `_attend` does not know"""


class NotFlatError(Exception):
    """The model's attention needs more than the tokens of an input."""


class FlatInputs:
    """The inputs of a forward pass, each a range of tokens, the shorter ones first. Those of one length are a
    batch without padding."""

    def __init__(self, lengths: Sequence[int], progress: Callable[[], None] = lambda: None) -> None:
        """progress: called in each layer"""
        self.windows: set[int] = set()
        """the windows that layers had"""
        self.calls = 0
        self._progress = progress
        self._batches: list[tuple[int, int, int]] = []
        """each batch's first token, its inputs and their length"""
        start = 0
        for length, inputs in groupby(lengths):
            count = len(list(inputs))
            self._batches.append((start, count, length))
            start += count * length

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, window: int | None
    ) -> torch.Tensor:
        """q, k, v: [1, heads, tokens, size] → [1, tokens, heads, size of v]

        window: each token sees those at a distance less than this; None: all
        """
        self.calls += 1
        self._progress()
        if window is not None:
            self.windows.add(window)
        out = v.new_empty(1, q.shape[2], q.shape[1], v.shape[3])
        for start, count, length in self._batches:
            tokens = slice(start, start + count * length)
            query, key, values = (
                each[0, :, tokens].unflatten(1, (count, length)).transpose(0, 1) for each in (q, k, v)
            )
            mask = None if window is None or length <= window else _band(length, window, q.device)
            has_groups = q.shape[1] != k.shape[1]
            result = F.scaled_dot_product_attention(
                query, key, values, mask, scale=scale, enable_gqa=has_groups
            )
            out[0, tokens].unflatten(0, (count, length)).copy_(result.transpose(1, 2))
        return out


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    at = torch.arange(length, device=device)
    return (at[:, None] - at).abs() < window


_running = threading.local()
"""`inputs`: those of the forward pass that a thread runs"""


def run_flat(inputs: FlatInputs, module: torch.nn.Module, **arguments: Any) -> Any:
    """Calls the module, whose attention is that of `inputs`."""
    _running.inputs = inputs
    return module(**arguments)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it: a function of its `AttentionInterface`."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if causal or attention_mask is not None or any(others.get(name) is not None for name in _UNSERVED):
        raise NotFlatError
    return _running.inputs.attend(query, key, value, scaling, sliding_window or None), None


# No function is registered for masks of this name, so transformers makes none.
AttentionInterface.register(NAME, _attend)
