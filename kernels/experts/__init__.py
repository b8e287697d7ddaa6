"""Feed-forward layers of experts: a router sends each token to a few of them.

Only the weights of experts that a step's tokens have are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ..common.rows import take_rows
from ..common.threads import is_recording
from ..linear import Linear
from . import gate_cpu, router_cpu, sorting_cpu
from .grouped_cpu import GroupedProduct

__all__ = ["ExpertWeights", "Experts", "Router", "Routing", "RowFunction", "StackedWeights", "clamp_and_gate"]


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
        otherwise those of all experts do. batch_invariant: see `Linear.pack`."""
        self._weight, self._k, self._renormalizes = weight, k, renormalizes
        self._bias = bias if bias is None or weight.is_cuda else bias.float()
        self._invariant = Linear.pack(weight, bias, batch_invariant) if batch_invariant else None

    def __call__(self, x: torch.Tensor) -> Routing:
        """x: [tokens, hidden], of the weight's dtype"""
        if x.is_cuda:
            from . import cuda

            logits = F.linear(x, self._weight, self._bias)
            return Routing(*cuda.choose(logits, self._k, self._renormalizes))
        if self._invariant is not None:
            logits = self._invariant(x)
        else:
            logits = router_cpu.multiply(x, self._weight, self._bias)
        return Routing(*sorting_cpu.choose(logits, self._k, self._renormalizes))


def clamp_and_gate(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """g · sigmoid(alpha · g) · (u + 1) for the halves g and u of gate_up [rows, 2 × inner], where g is at
    most `limit`, and u is from -limit to limit. Computed in float32. Returns [rows, inner]."""
    if gate_up.is_cuda:
        from . import cuda

        return cuda.clamp_and_gate(gate_up, alpha, limit)
    return gate_cpu.clamp_and_gate(gate_up, alpha, limit)


class StackedWeights(NamedTuple):
    """The weights of all experts on CUDA."""

    weight: torch.Tensor
    """[experts, outputs, inputs], contiguous"""
    bias: torch.Tensor | None
    """[experts, outputs], contiguous"""


ExpertWeights = Sequence[Linear] | StackedWeights
"""a product for each expert, all of one shape, or the weights of all"""
RowFunction = Callable[[torch.Tensor], torch.Tensor]
"""computes each row [rows, …] by itself; the result is contiguous"""


class Experts:
    """Σ shares · second(activation(first(x))) over each token's experts."""

    def __init__(
        self,
        first: ExpertWeights,
        second: ExpertWeights,
        activation: RowFunction,
        finish: RowFunction | None = None,
    ) -> None:
        """finish: computes an expert's result from that of its second product."""
        self.first, self.second = first, second
        self._count = len(first.weight if isinstance(first, StackedWeights) else first)
        self._activation, self._finish = activation, finish
        self._first_group, self._second_group = (
            None if isinstance(each, StackedWeights) else GroupedProduct.of(each) for each in (first, second)
        )

    @property
    def is_capturable(self) -> bool:
        """Whether the host never waits for the numbers of an expert's rows."""
        return isinstance(self.first, StackedWeights) and isinstance(self.second, StackedWeights)

    def __call__(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        """x: [tokens, hidden], contiguous → [tokens, hidden]"""
        if x.is_cuda:
            return self._run_on_cuda(x, routing)
        order = sorting_cpu.sort(routing.experts, self._count)
        rows = take_rows(x, order.tokens)
        inner = self._activation(_multiply(rows, self.first, self._first_group, order))
        results = _multiply(inner, self.second, self._second_group, order)
        if self._finish is not None:
            results = self._finish(results)
        return sorting_cpu.combine(results, order.places, routing.shares)

    def _run_on_cuda(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        from . import cuda

        order = cuda.sort(routing.experts, self._count)
        works: list[tuple[int, int, int]] = []
        if not self.is_capturable:
            starts = order.starts.tolist()
            ranges = enumerate(pairwise(starts))
            works = [(expert, begin, end - begin) for expert, (begin, end) in ranges if end > begin]

        def multiply_rows(x: torch.Tensor, weights: ExpertWeights, gathers: bool) -> torch.Tensor:
            if isinstance(weights, StackedWeights):
                return cuda.multiply(x, *weights, order, gathers)
            return _multiply_each(x[order.tokens] if gathers else x, weights, works)

        results = multiply_rows(self._activation(multiply_rows(x, self.first, True)), self.second, False)
        if self._finish is not None:
            results = self._finish(results)
        return cuda.combine(results, order, routing.shares)


def _multiply(
    x: torch.Tensor, weights: ExpertWeights, grouped: GroupedProduct | None, order: sorting_cpu.Order
) -> torch.Tensor:
    assert not isinstance(weights, StackedWeights)
    if grouped is not None:
        return grouped(x, order.works)
    return _multiply_each(x, weights, sorting_cpu.read_works(order.works, is_recording()))


def _multiply_each(
    x: torch.Tensor, products: Sequence[Linear], works: Sequence[tuple[int, int, int]]
) -> torch.Tensor:
    """works: an expert, its first row and its number of rows"""
    y = torch.zeros(len(x), products[0].out_features, dtype=x.dtype, device=x.device)
    for expert, first, count in works:
        y[first : first + count] = products[expert](x[first : first + count])
    return y
