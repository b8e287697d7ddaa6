"""Weights stored in one byte each (int8 or FP8 E4M3), with one scale for each block of the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from .expand import groups_of
from .weight_format import (
    FLOATS,
    GET_FILE_AGAIN,
    CodedRows,
    CodedWeight,
    Projection,
    Shape,
    Stored,
    TensorError,
    TensorSpec,
)

INT8_ZERO = 128
"""the code of the signed byte 0"""


class ScaleGrid(NamedTuple):
    """One scale for each block of `rows` outputs by `columns` inputs. None: all rows or all columns."""

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
        """Selects the scales of the rows in `piece`, [n or 1, groups], from the whole grid as stored."""
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
    """The values are in `weight`, the scales in the tensor named by `scale`, and zero points, if the format
    is asymmetric, in `weight_zero_point`."""

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
        groups = groups_of(None, inputs, self.grid.columns)

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
"""Scales of activations. They are ignored, because products compute scales of their own."""
