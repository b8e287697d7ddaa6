"""compressed-tensors' format `pack-quantized`: integers packed into words along the inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .checkpoint import FLOATS, TensorSpec
from .expand import expand_rows, groups_of, scaled, unpack
from .weight_format import Projection, Stored


@dataclass(frozen=True)
class PackQuantizedFormat:
    bits: int
    """4 or 8"""
    group_size: int | None
    """inputs of a group; None: all inputs"""
    symmetric: bool
    ordered: bool
    """Whether `weight_g_idx` gives each input's group."""

    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        outputs, inputs = projection.outputs, projection.inputs
        groups = -(-inputs // (self.group_size or inputs))
        each = 32 // self.bits  # values of a word
        described = {
            "weight_packed": TensorSpec(((outputs, -(-inputs // each)),), ("I32",)),
            "weight_scale": TensorSpec(((outputs, groups),), tuple(FLOATS)),
            "weight_shape": TensorSpec(((2,),), ("I64", "I32"), optional=True),
        }
        if not self.symmetric:
            described["weight_zero_point"] = TensorSpec(((-(-outputs // each), groups),), ("I32",))
        if self.ordered:
            described["weight_g_idx"] = TensorSpec(((inputs,),), ("I32", "I64"))
        return described

    def expand_into(self, target: torch.Tensor, stored: Stored) -> None:
        packed, scales, zeros = (
            stored["weight_packed"],
            stored["weight_scale"],
            stored.get("weight_zero_point"),
        )
        inputs, each = target.shape[1], 32 // self.bits
        groups = groups_of(stored.get("weight_g_idx"), inputs, self.group_size)

        def rows(piece: slice) -> torch.Tensor:
            # Values and zero points are stored with the same offset.
            values = unpack(packed[piece], self.bits)[:, :inputs]
            if zeros is None:
                zero = torch.tensor([[1 << (self.bits - 1)]])
            else:
                words = zeros[piece.start // each : -(-piece.stop // each)]
                zero = unpack(words.T, self.bits).T[: piece.stop - piece.start]
            return scaled(values, zero.expand(-1, scales.shape[1]), scales[piece], groups)

        expand_rows(target, rows)
