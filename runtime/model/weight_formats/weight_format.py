"""The interface of weight formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Protocol

import torch

from .checkpoint import TensorSpec


class Projection(NamedTuple):
    """A matrix [outputs, inputs] of the decoder. `kind` is the class name that configs know."""

    name: str
    """such as `model.layers.0.self_attn.q_proj`"""
    outputs: int
    inputs: int
    biased: bool = False
    kind: Literal["Linear", "Embedding"] = "Linear"


Stored = Mapping[str, torch.Tensor]
"""a projection's tensors as stored, by the last part of their names, such as `weight_scale`"""


class WeightFormat(Protocol):
    """One way of storing a projection. All formats expand to the server's dtype when they are loaded."""

    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        """The projection's tensors by the last part of their names, without the bias of a biased one."""

    def expand_into(self, target: torch.Tensor, stored: Stored) -> None:
        """Writes the weight to `target` [outputs, inputs]. Temporary tensors stay within a few MB.

        Raises ConfigError for values that no valid checkpoint has.
        """


ChooseFormat = Callable[[Projection], WeightFormat]
