"""The attention function of the models of transformers: it gives each call to the forward pass that runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from ....kernels.attention import Reach

NAME = "arbora"
"""the attention implementation's name in a model's config"""
BIAS_BY_DISTANCE = "adds a bias that depends on the distance of tokens to the scores of attention"
_UNSUPPORTED = {
    "position_bias": BIAS_BY_DISTANCE,
    "indices": "selects the keys of each query by an index",
    "block_indices": "selects the keys of each query by an index",
}
"""arguments of the attention function that change its result, and what a model with one of them does"""


class UnservedModelError(Exception):
    """A model can't be served. The text completes a sentence that begins with the model's name."""


class AttentionCall(NamedTuple):
    """The shape and the settings of an attention call. A layer makes the same call in every forward pass."""

    heads: int
    """query heads"""
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    window: int | None
    """each token sees itself and the `window` - 1 tokens before; None: all"""
    chunk: int | None
    """each token sees the tokens since the last position that is a multiple of `chunk`; None: all"""
    softcap: float | None
    """scores s become softcap × tanh(s / softcap); None: they stay"""
    has_sinks: bool
    """whether each head has a score that takes part in the softmax without a value"""

    @property
    def reach(self) -> Reach:
        return Reach(self.window, self.chunk)


class AttentionHandler(Protocol):
    """A forward pass that computes or records attention."""

    def attend(
        self,
        call: AttentionCall,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """q: [1, heads, tokens, key_dim]; k: [1, kv_heads, tokens, key_dim]; v: [1, kv_heads, tokens,
        value_dim]; sinks: [heads]. Returns [1, tokens, heads, value_dim]."""
        ...


_handlers: list[AttentionHandler] = []
"""the handler of the forward pass that runs; a process runs one at a time"""


@contextmanager
def handled_by(handler: AttentionHandler) -> Iterator[None]:
    """Context in which `handler` gets the attention calls."""
    _handlers.append(handler)
    try:
        yield
    finally:
        _handlers.pop()


def use_attention(model: PreTrainedModel, name: str) -> None:
    """Sets the attention implementation of all modules."""
    for module in model.modules():
        if isinstance(config := getattr(module, "config", None), PreTrainedConfig):
            config._attn_implementation = name


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: Any = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it: a function of its `AttentionInterface`."""
    for name, problem in _UNSUPPORTED.items():
        if others.get(name) is not None:
            raise UnservedModelError(problem)
    if attention_mask is not None:
        raise UnservedModelError("makes attention masks itself")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise UnservedModelError("has attention to later tokens")
    if key.shape[2] != query.shape[2]:
        raise UnservedModelError("has attention to keys that are not the step's tokens")
    if not (query.numel() and key.numel() and value.numel()):
        raise UnservedModelError("has attention without heads")
    sinks = s_aux if s_aux is not None else sinks
    window = sliding_window[0] if isinstance(sliding_window, (tuple, list)) else sliding_window
    call = AttentionCall(
        heads=query.shape[1],
        kv_heads=key.shape[1],
        key_dim=query.shape[3],
        value_dim=value.shape[3],
        scale=query.shape[3] ** -0.5 if scaling is None else float(scaling),
        window=window or None,
        chunk=_find_chunk(module),
        softcap=softcap or None,
        has_sinks=sinks is not None,
    )
    return _handlers[-1].attend(call, query, key, value, sinks), None


def _find_chunk(module: torch.nn.Module) -> int | None:
    """The chunk of a layer of chunked attention, which only the config tells."""
    config, layer = getattr(module, "config", None), getattr(module, "layer_idx", None)
    types = getattr(config, "layer_types", None)
    if not types or layer is None or layer >= len(types) or types[layer] != "chunked_attention":
        return None
    chunk: int | None = getattr(config, "attention_chunk_size", None)
    return chunk


# No function is registered for masks of this name, so transformers makes none. The handler knows the rows.
AttentionInterface.register(NAME, attend)
