"""The feed-forward part of a layer: one gated layer, or experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch

from ...kernels.elementwise import gelu_and_mul, silu_and_mul
from ...kernels.experts import (
    Experts,
    ExpertWeights,
    Router,
    RowFunction,
    StackedWeights,
    clamp_and_gate,
)
from ...kernels.linear import Linear
from .experts_config import ExpertsConfig
from .weight_formats import (
    Checkpoint,
    Projection,
    ProjectionLoader,
    Run,
    TensorSpec,
    by_inputs,
    by_outputs,
)
from .weight_formats.checkpoint import StackedPart
from .weight_formats.weight_format import FLOATS

ACTIVATIONS: dict[str, RowFunction] = {"silu": silu_and_mul, "gelu_tanh": gelu_and_mul}


class FeedForward(Protocol):
    @property
    def products(self) -> Sequence[Linear]:
        """the matrix products that every token goes through"""
        ...

    @property
    def is_capturable(self) -> bool:
        """whether CUDA graphs capture it"""
        ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, hidden] → [tokens, hidden]"""
        ...


class GatedFeedForward:
    is_capturable = True

    def __init__(self, gate_up: Linear, down: Linear, activation: RowFunction) -> None:
        """gate_up: hidden → 2 × intermediate: gate, up"""
        self._gate_up, self._down, self._activation = gate_up, down, activation
        self.products = (gate_up, down)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._down(self._activation(self._gate_up(x)))


class ExpertFeedForward:
    products = ()

    def __init__(self, router: Router, experts: Experts) -> None:
        self._router, self._experts = router, experts
        self.is_capturable = experts.is_capturable

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._experts(x, self._router(x))


class FeedForwardProjections(NamedTuple):
    """The matrices of a feed-forward layer, or of one of its experts, as checkpoints store them."""

    gate_up: tuple[Projection, ...]
    down: Projection


def expert_projections(config: ExpertsConfig, layer: int, hidden: int) -> Iterator[FeedForwardProjections]:
    """Those of each expert of a layer."""
    inner, family = Run(config.intermediate_size), config.family
    for expert in range(config.count):
        gate, up, down = (f"model.layers.{layer}.{family.experts}.{expert}.{part}" for part in family.parts)
        first = tuple(by_outputs(name, (inner,), hidden, biased=family.biased) for name in (gate, up))
        yield FeedForwardProjections(first, by_inputs(down, hidden, inner, biased=family.biased))


_ENDS = {"weight": "", "bias": "_bias", "blocks": "_blocks", "scales": "_scales"}
"""the ends of the names of stacked tensors by the parts of a matrix that they have"""


def split_experts(checkpoint: Checkpoint, config: ExpertsConfig, layer: int) -> None:
    """Gives the experts' matrices in a layer's stacked tensors the names of `expert_projections`."""
    experts = f"model.layers.{layer}.{config.family.experts}"
    gate, up, down = config.family.parts
    outputs = {gate: slice(0, None, 2), up: slice(1, None, 2), down: slice(None)}
    for part, end in _ENDS.items():
        of_part = {name: StackedPart(name, part, rows, part == "weight") for name, rows in outputs.items()}
        checkpoint.split(f"{experts}.gate_up_proj{end}", experts, [of_part[gate], of_part[up]])
        checkpoint.split(f"{experts}.down_proj{end}", experts, [of_part[down]])


def router_tensors(config: ExpertsConfig, layer: int, hidden: int) -> dict[str, TensorSpec]:
    """The router's tensors in a checkpoint, by name, the weight first. It is never quantized."""
    name = f"model.layers.{layer}.{config.family.router}"
    tensors = {f"{name}.weight": TensorSpec(((config.count, hidden),), tuple(FLOATS))}
    if config.family.biased:
        tensors[f"{name}.bias"] = TensorSpec(((config.count,),), tuple(FLOATS))
    return tensors


def load_experts(
    loader: ProjectionLoader, config: ExpertsConfig, layer: int, hidden: int
) -> ExpertFeedForward:
    weight, *bias = (loader.load_vector(name) for name in router_tensors(config, layer, hidden))
    router = Router(
        weight, bias[0] if bias else None, config.per_token, config.renormalizes, loader.batch_invariant
    )
    firsts, seconds = zip(*expert_projections(config, layer, hidden), strict=True)
    first, second = _load(loader, firsts), _load(loader, [(down,) for down in seconds])
    activation: RowFunction = silu_and_mul
    if config.family.clamps:
        activation = partial(clamp_and_gate, alpha=config.swiglu_alpha, limit=config.swiglu_limit)
    return ExpertFeedForward(router, Experts(first, second, activation))


def _load(loader: ProjectionLoader, experts: Sequence[tuple[Projection, ...]]) -> ExpertWeights:
    """The weights of each expert's projections, which read the same input. A GPU has those in 16 or 32 bits
    stacked."""
    first = experts[0]
    if loader.device.type == "cpu" or loader.is_packed(first[0]):
        return [loader.load_linear(*projections) for projections in experts]
    return stack_experts(loader, experts)


def stack_experts(loader: ProjectionLoader, experts: Sequence[tuple[Projection, ...]]) -> StackedWeights:
    """Loads this rank's part of each expert's weights into one tensor."""
    shape = (len(experts), *loader.find_part_size(*experts[0]))
    weights = torch.empty(shape, dtype=loader.dtype, device=loader.device)
    for weight, projections in zip(weights, experts, strict=True):
        weight.copy_(loader.load_weight(*projections))
    biases = [bias for projections in experts if (bias := loader.load_bias(projections)) is not None]
    return StackedWeights(weights, torch.stack(biases) if biases else None)
