"""Attention that some models compute in methods of their own: calls of our function replace these."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from .attention_calls import attend


def replace_own_attention(model: PreTrainedModel) -> None:
    """Replaces the methods of the model's modules that compute attention."""
    for module in model.modules():
        kind = f"{type(module).__module__}.{type(module).__name__}".removeprefix("transformers.models.")
        if kind in _METHODS:
            name, compute = _METHODS[kind]
            setattr(module, name, partial(compute, module))
        elif kind == "falcon.modeling_falcon.FalconLinear":  # computes what its base does
            module.__class__ = torch.nn.Linear


# Each function takes what the method takes, after its module, and returns what the method does.


def _attend_xglm(module: Any, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
    products = (module.q_proj, module.k_proj, module.v_proj)
    heads = (product(hidden_states).unflatten(2, (module.num_heads, -1)) for product in products)
    query, key, value = (each.transpose(1, 2) for each in heads)
    out, weights = attend(module, query, key, value)
    return module.out_proj(out.flatten(2)), weights


def _attend_gpt_neo(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: None
) -> tuple[torch.Tensor, None]:
    window = module.config.window_size if module.attention_type == "local" else None
    out, weights = attend(module, query, key, value, scaling=1.0, sliding_window=window)
    return out.transpose(1, 2), weights


def _attend_gpt_neox_japanese(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _: None
) -> tuple[torch.Tensor, None]:
    out, weights = attend(module, query, key, value)
    return out.transpose(1, 2), weights


def _attend_openai_gpt(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> list[torch.Tensor]:
    out = attend(module, query, key.transpose(2, 3), value)[0]
    return [out.transpose(1, 2)]


_METHODS: dict[str, tuple[str, Callable[..., Any]]] = {
    "gpt_neo.modeling_gpt_neo.GPTNeoSelfAttention": ("_attn", _attend_gpt_neo),
    "gpt_neox_japanese.modeling_gpt_neox_japanese.GPTNeoXJapaneseAttention": (
        "_attn",
        _attend_gpt_neox_japanese,
    ),
    "openai.modeling_openai.Attention": ("_attn", _attend_openai_gpt),
    "xglm.modeling_xglm.XGLMAttention": ("forward", _attend_xglm),
}
"""the methods that compute attention, by their classes in transformers.models"""
