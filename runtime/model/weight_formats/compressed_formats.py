"""The formats of compressed-tensors: weights of a byte each (int8 or FP8 E4M3), which other methods use too,
integers packed into words, and MXFP4."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from .expand import find_groups, nibbles, only_value, unpack
from .weight_format import (
    FLOATS,
    GET_FILE_AGAIN,
    CodedRows,
    CodedWeight,
    Groups,
    Projection,
    Shape,
    Stored,
    TensorError,
    TensorSpec,
)

INT8_ZERO = 128
"""the code of the signed byte 0"""


class ScaleGrid(NamedTuple):
    """Has one scale for each block of `rows` outputs by `columns` inputs. None: all rows or all columns."""

    rows: int | None
    columns: int | None

    def shapes(self, outputs: int, inputs: int) -> tuple[Shape, ...]:
        """The shapes in which checkpoints store the scales."""
        height = 1 if self.rows is None else -(-outputs // self.rows)
        width = 1 if self.columns is None else -(-inputs // self.columns)
        if (self.rows, self.columns) == (None, None):
            return (1,), (), (1, 1)
        return ((height, width), (height,)) if self.columns is None else ((height, width),)

    def of_rows(self, grid: torch.Tensor, piece: slice) -> torch.Tensor:
        """Selects the scales of the outputs in `piece`, [n or 1, groups], from the whole grid as stored."""
        if self.rows is None:
            return grid.reshape(1, -1)
        grid = grid.reshape(len(grid), -1)
        if self.rows == 1:
            return grid[piece]
        blocks = grid[piece.start // self.rows : -(-piece.stop // self.rows)]
        skipped = piece.start % self.rows
        return blocks.repeat_interleave(self.rows, 0)[skipped : skipped + piece.stop - piece.start]


@dataclass(frozen=True)
class ByteFormat:
    """A format with one byte for each weight, and one scale for each block of the matrix.

    The bytes are in `weight`, the scales in the tensor that `scale` names, and zero points, if the format is
    asymmetric, in `weight_zero_point`.
    """

    dtype: Literal["I8", "F8_E4M3"]
    grid: ScaleGrid
    scale: str = "weight_scale"
    symmetric: bool = True
    rounds_activations: bool = False
    """see `CodedWeight.rounds_activations`"""

    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        outputs, inputs = projection.outputs, projection.inputs
        shapes = self.grid.shapes(outputs, inputs)
        described = {
            "weight": TensorSpec(((outputs, inputs),), (self.dtype,)),
            self.scale: TensorSpec(shapes, tuple(FLOATS)),
        }
        if not self.symmetric:
            described["weight_zero_point"] = TensorSpec(shapes, ("I8",))
        return described | OF_ACTIVATIONS

    def read(self, stored: Stored, outputs: int, inputs: int) -> CodedWeight:
        weight, scales, zeros = stored["weight"], stored[self.scale], stored.get("weight_zero_point")
        groups = find_groups(None, inputs, self.grid.columns)

        def fp8_rows(piece: slice) -> CodedRows:
            values = weight[piece]
            if values.view(torch.int8).max() == 0x7F or values.view(torch.uint8).max() == 0xFF:
                raise TensorError("weight", f"has values that are NaN. {GET_FILE_AGAIN}")
            return CodedRows(values, self.grid.of_rows(scales, piece))

        if self.dtype == "F8_E4M3":
            return CodedWeight(None, groups, None, self.scale, fp8_rows, self.rounds_activations)

        def rows(piece: slice) -> CodedRows:
            zero = INT8_ZERO if zeros is None else self.grid.of_rows(zeros, piece).int() + INT8_ZERO
            codes = weight[piece].view(torch.uint8) ^ INT8_ZERO
            return CodedRows(codes, self.grid.of_rows(scales, piece), zero)

        zero = INT8_ZERO if zeros is None else None
        return CodedWeight(8, groups, zero, self.scale, rows, self.rounds_activations)


OF_ACTIVATIONS = {
    name: TensorSpec(((), (1,)), (*FLOATS, "I8"), optional=True)
    for name in ("input_scale", "input_zero_point", "activation_scale")
}
"""tensors of the activations' scales; ignored, because products compute their own scales"""


@dataclass(frozen=True)
class PackQuantizedFormat:
    """compressed-tensors' format `pack-quantized`: integers packed into words along the inputs."""

    bits: Literal[4, 8]
    group_size: int | None
    """number of inputs in a group; None: all inputs"""
    symmetric: bool
    ordered: bool
    """whether `weight_g_idx` gives each input's group"""

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
        groups = find_groups(stored.get("weight_g_idx"), inputs, self.group_size, "weight_g_idx")
        # Values and zero points are stored with the same offset.
        zeros: torch.Tensor | int = 1 << (self.bits - 1)
        if packed_zeros is not None:
            zeros = unpack(packed_zeros.T, self.bits).T[:outputs]

        def rows(piece: slice) -> CodedRows:
            codes = unpack(packed[piece], self.bits)[:, :inputs]
            return CodedRows(codes, scales[piece], zeros if isinstance(zeros, int) else zeros[piece])

        zero = zeros if isinstance(zeros, int) else only_value(zeros)
        return CodedWeight(self.bits, groups, zero, "weight_scale", rows)


MXFP4_GROUP = 32
MXFP4_ZERO = 12
MXFP4_CODES = torch.tensor(
    [MXFP4_ZERO + value for value in (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)],
    dtype=torch.uint8,
)
"""MXFP4_ZERO plus twice the value of each FP4 number"""


MXFP4_HALF_SCALES = torch.tensor([2.0 ** (exponent - 128) for exponent in range(255)] + [math.nan])
"""half of the scale that each exponent byte stands for, float32"""


@dataclass(frozen=True)
class Mxfp4Format:
    """MXFP4: two values in a byte, the first in the low half."""

    packed: str = "weight_packed"
    scale: str = "weight_scale"
    """the names that compressed-tensors' format `mxfp4-pack-quantized` gives to the tensors"""
    has_blocks: bool = False
    """whether the bytes are [outputs, groups, bytes of a group], as in gpt-oss; otherwise [outputs, bytes]"""

    def tensors(self, projection: Projection) -> dict[str, TensorSpec]:
        outputs, groups = projection.outputs, projection.inputs // MXFP4_GROUP
        half = MXFP4_GROUP // 2
        shape = (outputs, groups, half) if self.has_blocks else (outputs, projection.inputs // 2)
        return {
            self.packed: TensorSpec((shape,), ("U8",)),
            self.scale: TensorSpec(((outputs, groups),), ("U8",)),
        }

    def read(self, stored: Stored, outputs: int, inputs: int) -> CodedWeight:
        packed, scales = stored[self.packed], stored[self.scale]

        def rows(piece: slice) -> CodedRows:
            values = nibbles(packed[piece].flatten(1))
            return CodedRows(MXFP4_CODES[values.int()], MXFP4_HALF_SCALES[scales[piece].int()], MXFP4_ZERO)

        return CodedWeight(8, Groups(MXFP4_GROUP, None), MXFP4_ZERO, self.scale, rows)
