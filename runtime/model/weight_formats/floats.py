"""The format of weights in 16 or 32 bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .tensor_spec import FLOATS, TensorSpec
from .weight_format import Projection, Stored


@dataclass(frozen=True)
class FloatFormat:
    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        return {"weight": TensorSpec(((projection.outputs, projection.inputs),), tuple(FLOATS))}

    def read(self, stored: Stored, outputs: int, inputs: int) -> torch.Tensor:
        return stored["weight"]
