"""The experts of a model of transformers: a product for each expert, or stacked weights on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from ....kernels.linear import Linear

NAME = "arbora"
"""the experts implementation's name in a model's config"""
FIRST, SECOND = ("gate_up_proj", "up_proj"), "down_proj"
"""the names of a module's stacked weights: hidden → inner (one of the two), inner → hidden"""


class ExpertProducts(NamedTuple):
    """The products of a module's experts."""

    first: Sequence[Linear]
    """hidden → inner, or twice the inner size if there is a gate"""
    second: Sequence[Linear]

    def run(
        self, module: Any, hidden: torch.Tensor, experts: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """Reads only the weights of the experts that the step's tokens have.

        hidden: [tokens, hidden]; experts and shares: [tokens, k], the numbers and the weights of each token's
        experts. Returns [tokens, hidden].
        """
        tokens, k = experts.shape
        numbers, order = experts.reshape(-1).sort(stable=True)
        rows = hidden[order // k]
        results = torch.zeros_like(rows)
        start = 0
        for expert, count in enumerate(torch.bincount(numbers, minlength=len(self.first)).tolist()):
            if count and expert < len(self.first):  # larger numbers stand for no expert
                of_expert = slice(start, start + count)
                inner = self.first[expert](rows[of_expert])
                inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
                results[of_expert] = self.second[expert](inner.contiguous())
            start += count
        if module.has_post_expert_norm:
            results = module.post_expert_norm(results)
        weighted = results * shares.reshape(-1)[order, None]
        by_token = torch.empty_like(weighted)
        by_token[order] = weighted
        return by_token.view(tokens, k, -1).sum(1).to(hidden.dtype)


def is_experts(module: torch.nn.Module) -> bool:
    return hasattr(module, "has_gate") and hasattr(module, "is_transposed") and hasattr(module, SECOND)


def pack_stacked(module: torch.nn.Module) -> None:
    """Turns a module's stacked weights into products, and frees them."""
    first = next(name for name in FIRST if module._parameters.get(name) is not None)
    products = [_pack(module, name) for name in (first, SECOND)]
    set_products(module, ExpertProducts(*products))


def set_products(module: torch.nn.Module, products: ExpertProducts) -> None:
    """Gives a module its products in place of its stacked weights."""
    module.expert_products = products  # type: ignore[assignment]
    for name in (*FIRST, SECOND):
        if name in module._parameters:
            module._parameters[name] = None


def _pack(module: Any, name: str) -> list[Linear]:
    weights, biases = module._parameters[name].data, module._parameters.get(f"{name}_bias")
    if module.is_transposed:
        weights = weights.transpose(1, 2)
    each_bias = [None] * len(weights) if biases is None else list(biases.data)
    return [Linear.pack(weight.contiguous(), bias) for weight, bias in zip(weights, each_bias, strict=True)]


def _run_experts(module: Any, hidden: torch.Tensor, experts: torch.Tensor, shares: torch.Tensor) -> Any:
    """As transformers calls it. On the meta device, where no token has an expert, only the shape counts."""
    if hidden.is_meta:
        return torch.empty_like(hidden)
    products: ExpertProducts | None = getattr(module, "expert_products", None)
    if products is None:
        return ALL_EXPERTS_FUNCTIONS["grouped_mm"](module, hidden, experts, shares)
    return products.run(module, hidden, experts, shares)


ALL_EXPERTS_FUNCTIONS.register(NAME, _run_experts)
