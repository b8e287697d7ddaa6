"""compressed-tensors' format `pack-quantized`: integers packed into words along the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from .expand import groups_of, only_value, unpack
from .weight_format import (
    FLOATS,
    GET_FILE_AGAIN,
    CodedRows,
    CodedWeight,
    Projection,
    Stored,
    TensorError,
    TensorSpec,
)


@dataclass(frozen=True)
class PackQuantizedFormat:
    bits: Literal[4, 8]
    group_size: int | None
    """inputs of a group; None: all inputs"""
    symmetric: bool
    ordered: bool
    """Whether `weight_g_idx` gives each input's group."""

    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        outputs, inputs = projection.outputs, projection.inputs
        groups = -(-inputs // (self.group_size or inputs))
        each = 32 // self.bits  # values in a word
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

    def read(self, stored: Stored, outputs: int, inputs: int) -> CodedWeight:
        packed, scales = stored["weight_packed"], stored["weight_scale"]
        packed_zeros = stored.get("weight_zero_point")
        shape = stored.get("weight_shape")
        if shape is not None and shape.tolist() != [outputs, inputs]:
            raise TensorError(
                "weight_shape",
                f"has the values {shape.tolist()}, but weight_packed is for a weight of {[outputs, inputs]}. "
                f"{GET_FILE_AGAIN}",
            )
        groups = groups_of(stored.get("weight_g_idx"), inputs, self.group_size, "weight_g_idx")
        # Values and zero points are stored with the same offset.
        zeros: torch.Tensor | int = 1 << (self.bits - 1)
        if packed_zeros is not None:
            zeros = unpack(packed_zeros.T, self.bits).T[:outputs]

        def rows(piece: slice) -> CodedRows:
            codes = unpack(packed[piece], self.bits)[:, :inputs]
            return CodedRows(codes, scales[piece], zeros if isinstance(zeros, int) else zeros[piece])

        zero = zeros if isinstance(zeros, int) else only_value(zeros)
        return CodedWeight(self.bits, groups, zero, "weight_scale", rows)
