"""The experts of a model of transformers: a product for each expert, or stacked weights on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from ....kernels.experts import Experts, Routing
from ....kernels.linear import Linear

NAME = "arbora"
"""the experts implementation's name in a model's config"""
FIRST, SECOND = ("gate_up_proj", "up_proj"), "down_proj"
"""the names of a module's stacked weights: hidden → inner (one of the two), inner → hidden"""


def is_experts(module: torch.nn.Module) -> bool:
    return hasattr(module, "has_gate") and hasattr(module, "is_transposed") and hasattr(module, SECOND)


def pack_stacked(module: torch.nn.Module) -> None:
    """Turns a module's stacked weights into products, and frees them."""
    first = next(name for name in FIRST if module._parameters.get(name) is not None)
    products = [_pack(module, name) for name in (first, SECOND)]
    set_products(module, *products)


def set_products(module: Any, first: Sequence[Linear], second: Sequence[Linear]) -> None:
    """Gives a module the products of its experts in place of its stacked weights. first: hidden → inner, or
    twice the inner size if there is a gate"""
    activation = module._apply_gate if module.has_gate else module.act_fn
    finish = module.post_expert_norm if module.has_post_expert_norm else None
    module.expert_products = Experts(first, second, lambda inner: activation(inner).contiguous(), finish)
    for name in (*FIRST, SECOND):
        if name in module._parameters:
            module._parameters[name] = None


def _pack(module: Any, name: str) -> list[Linear]:
    weights, biases = module._parameters[name].data, module._parameters.get(f"{name}_bias")
    if module.is_transposed:
        weights = weights.transpose(1, 2)
    each_bias = [None] * len(weights) if biases is None else list(biases.data)
    return [Linear.pack(weight.contiguous(), bias) for weight, bias in zip(weights, each_bias, strict=True)]


def run_experts(module: Any, hidden: torch.Tensor, experts: torch.Tensor, shares: torch.Tensor) -> Any:
    """As transformers calls it. On the meta device, where no token has an expert, only the shape counts."""
    if hidden.is_meta:
        return torch.empty_like(hidden)
    products: Experts | None = getattr(module, "expert_products", None)
    if products is None:
        return ALL_EXPERTS_FUNCTIONS["grouped_mm"](module, hidden, experts, shares)
    return products(hidden.contiguous(), Routing(experts, shares))


ALL_EXPERTS_FUNCTIONS.register(NAME, run_experts)
