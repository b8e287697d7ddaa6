"""Loads the decoder's projections from a checkpoint in any format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ....kernels.linear import Linear
from ...errors import ConfigError
from .checkpoint import Checkpoint
from .expand import expand_into
from .tensor_spec import FLOATS, TensorSpec
from .weight_format import ChooseFormat, CodedWeight, Projection


def projection_tensors(projection: Projection, choose: ChooseFormat) -> dict[str, TensorSpec]:
    """The projection's tensors in a checkpoint, by name."""
    described = choose(projection).tensors(projection)
    if projection.biased:
        described = described | {"bias": TensorSpec(((projection.outputs,),), tuple(FLOATS))}
    return {f"{projection.name}.{name}": spec for name, spec in described.items()}


@dataclass(frozen=True)
class ProjectionLoader:
    """`checkpoint` was checked to have the projections' tensors. batch_invariant: see `Linear.pack`."""

    checkpoint: Checkpoint
    choose: ChooseFormat
    dtype: torch.dtype
    device: torch.device
    batch_invariant: bool

    def linear(self, *projections: Projection) -> Linear:
        """One product for projections that have the same input; their outputs are concatenated."""
        self.find_sizes(*projections)
        weight = self.weight(*projections)
        bias = self.vector(*(f"{each.name}.bias" for each in projections)) if projections[0].biased else None
        return Linear.pack(weight, bias, self.batch_invariant)

    def find_sizes(self, *projections: Projection) -> None:
        """Finds the sizes of `linear`'s product before the weights are read, as the trial takes memory."""
        if self.batch_invariant:
            outputs = sum(each.outputs for each in projections)
            first = projections[0]
            Linear.find_sizes(outputs, first.inputs, self.dtype, self.device, first.biased)

    def weight(self, *projections: Projection) -> torch.Tensor:
        """The projections' weights, joined along the outputs."""
        sizes = [each.outputs for each in projections]
        joined = torch.empty((sum(sizes), projections[0].inputs), dtype=self.dtype, device=self.device)
        for part, projection in zip(torch.split(joined, sizes), projections, strict=True):
            with _naming(projection):
                expand_into(part, self._read(projection))
        return joined

    def vector(self, *names: str) -> torch.Tensor:
        """The named vectors, concatenated."""
        return torch.cat([self.checkpoint.read(name).to(self.device, self.dtype) for name in names])

    def _read(self, projection: Projection) -> torch.Tensor | CodedWeight:
        weight_format = self.choose(projection)
        names = {name: f"{projection.name}.{name}" for name in weight_format.tensors(projection)}
        stored = {
            name: self.checkpoint.read(full) for name, full in names.items() if full in self.checkpoint.names
        }
        return weight_format.read(stored, projection.outputs, projection.inputs)


@contextmanager
def _naming(projection: Projection) -> Iterator[None]:
    """Puts the projection's name before a ConfigError's message."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{projection.name}: {error}.") from None
