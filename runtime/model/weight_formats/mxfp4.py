"""MXFP4: FP4 E2M1 values, with a power of two as the scale of each 32 inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .expand import nibbles
from .weight_format import CodedRows, CodedWeight, Groups, Projection, Stored, TensorSpec

GROUP = 32
ZERO = 12
CODES = torch.tensor(
    [ZERO + value for value in (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)], dtype=torch.uint8
)
"""ZERO plus twice the value of each FP4 number"""


HALF_SCALES = torch.tensor([2.0 ** (exponent - 128) for exponent in range(255)] + [math.nan])
"""half of the scale that each byte stands for, float32"""


@dataclass(frozen=True)
class Mxfp4Format:
    """compressed-tensors' format `mxfp4-pack-quantized`: two values in a byte, the first in the low half."""

    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        outputs, inputs = projection.outputs, projection.inputs
        return {
            "weight_packed": TensorSpec(((outputs, inputs // 2),), ("U8",)),
            "weight_scale": TensorSpec(((outputs, inputs // GROUP),), ("U8",)),
        }

    def read(self, stored: Stored, outputs: int, inputs: int) -> CodedWeight:
        packed, scales = stored["weight_packed"], stored["weight_scale"]

        def rows(piece: slice) -> CodedRows:
            return CodedRows(CODES[nibbles(packed[piece]).int()], HALF_SCALES[scales[piece].int()], ZERO)

        return CodedWeight(8, Groups(GROUP, None), ZERO, "weight_scale", rows)
