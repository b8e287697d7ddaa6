"""Feed-forward layers of experts: a router sends each token to a few of them.

Only the weights of experts that a step's tokens have are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ..common.rows import take_rows
from ..common.threads import is_recording
from ..linear import Linear
from ..linear.half import multiply, to_float32
from . import sorting_cpu
from .grouped_cpu import GroupedProduct

__all__ = ["Experts", "Router", "Routing"]


class Routing(NamedTuple):
    """The experts of each token."""

    experts: torch.Tensor
    """int32 or int64 [tokens, k]; a number that no expert has stands for none"""
    shares: torch.Tensor
    """[tokens, k], the factors of their results, of any float dtype"""


class Router:
    """Sends each token to the `k` experts with the largest logits; softmax makes the shares."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        k: int,
        renormalizes: bool,
        batch_invariant: bool = False,
    ) -> None:
        """weight: [experts, hidden]; bias: [experts]. renormalizes: the shares of a token's experts sum to 1;
        otherwise those of all experts do."""
        self._weight, self._k, self._renormalizes = weight, k, renormalizes
        self._bias = bias if bias is None or weight.is_cuda else bias.float()
        self._invariant = Linear.pack(weight, bias, batch_invariant) if batch_invariant else None

    def __call__(self, x: torch.Tensor) -> Routing:
        """x: [tokens, hidden], of the weight's dtype"""
        if x.is_cuda:
            from . import cuda

            return Routing(*cuda.choose(F.linear(x, self._weight, self._bias), self._k, self._renormalizes))
        if self._invariant is not None:
            logits = self._invariant(x)
        else:
            logits = torch.empty(len(x), len(self._weight), dtype=x.dtype)
            multiply(to_float32(x), self._weight, self._bias, logits)
        return Routing(*sorting_cpu.choose(logits, self._k, self._renormalizes))


Activation = Callable[[torch.Tensor], torch.Tensor]
"""[rows, outputs of the first product] → [rows, inputs of the second], contiguous"""


class Experts:
    """Σ shares · second(activation(first(x))) over each token's experts, with two products for each expert."""

    def __init__(
        self,
        first: Sequence[Linear],
        second: Sequence[Linear],
        activation: Activation,
        batch_invariant: bool = False,
    ) -> None:
        """The products of all experts have equal shapes. batch_invariant: see `Linear.pack`."""
        self._first, self._second = (_ExpertProducts(each, batch_invariant) for each in (first, second))
        self._activation = activation

    def __call__(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        """x: [tokens, hidden], contiguous → [tokens, hidden]"""
        order = sorting_cpu.sort(routing.experts, len(self._first))
        inner = self._activation(self._first(take_rows(x, order.tokens), order))
        return sorting_cpu.combine(self._second(inner, order), order.places, routing.shares)

    @property
    def counts(self) -> tuple[int, int]:
        """the numbers of products before and after the activation"""
        return len(self._first), len(self._second)


class _ExpertProducts:
    """y[i] = x[i] · the weight of its expert, for rows that are sorted by experts."""

    def __init__(self, products: Sequence[Linear], batch_invariant: bool) -> None:
        self._products = products
        self._grouped = GroupedProduct.of(products, batch_invariant)

    def __len__(self) -> int:
        return len(self._products)

    def __call__(self, x: torch.Tensor, order: sorting_cpu.Order) -> torch.Tensor:
        if self._grouped is not None and self._grouped.takes(len(x)):
            return self._grouped(x, order.works)
        y = torch.zeros(len(x), self._products[0].out_features, dtype=x.dtype)
        for expert, first, count in sorting_cpu.read_works(order.works, is_recording()):
            y[first : first + count] = self._products[expert](x[first : first + count])
        return y
