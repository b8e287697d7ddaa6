"""Weights of 16 or 32 bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .checkpoint import FLOATS, TensorSpec
from .weight_format import Projection, Stored


@dataclass(frozen=True)
class FloatFormat:
    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        return {"weight": TensorSpec(((projection.outputs, projection.inputs),), tuple(FLOATS))}

    def expand_into(self, target: torch.Tensor, stored: Stored) -> None:
        target.copy_(stored["weight"])
