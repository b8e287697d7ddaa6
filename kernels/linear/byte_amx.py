"""Products of 8-bit codes of many rows by AMX-INT8, the matrix instructions of x86.

One instruction multiplies the codes of 16 rows of activations and of 16 outputs, for 64 inputs, and adds the
products to a register of 16 × 16 int32. The vectors of 8-bit codes that `byte_dots` describes have the layout
that AMX needs.
"""

from __future__ import annotations

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common.amx import LEFT, RIGHT, SUMS, TILE_ROWS, instruction
from ..common.llvm import size
from ..common.vectors import LANES
from .byte_dots import TILE, VECTOR

BLOCK_ROWS = 32
"""Rows of activations of `multiply_block`: those of two tile registers."""

DEPTH = 64
"""One instruction multiplies so many inputs of each row."""


@intrinsic
def multiply_block(typing, x, x_row, codes, steps, sums):
    """sums = x · codes for BLOCK_ROWS rows, one group of `steps` × DEPTH inputs and 32 outputs.

    x: int8, `x_row` bytes from one row to the next; codes: int8 or uint8, in the layout of 8-bit codes in
    `byte_dots`; sums: int32 [BLOCK_ROWS, 32]
    """
    multiplication = "tdpbssd" if codes.dtype == types.int8 else "tdpbsud"

    def generate(context, builder, signature, arguments):
        x, x_row, codes, steps, sums = arguments
        row_bytes = size(2 * VECTOR)
        lower = builder.mul(x_row, size(TILE_ROWS))
        for tile in (*SUMS[0], *SUMS[1]):
            instruction(builder, "tilezero", tile)
        with cgutils.for_range(builder, steps) as loop:
            first = builder.mul(loop.index, size(DEPTH))
            rows = builder.gep(x, [first])
            place = builder.gep(codes, [builder.mul(first, size(2 * VECTOR // 4))])
            instruction(builder, "tileloadd64", RIGHT[0], place, row_bytes)
            instruction(builder, "tileloadd64", LEFT[0], rows, x_row)
            instruction(builder, "tileloadd64", RIGHT[1], builder.gep(place, [size(VECTOR)]), row_bytes)
            instruction(builder, "tileloadd64", LEFT[1], builder.gep(rows, [lower]), x_row)
            for half in range(2):
                for tile, of_outputs in zip(SUMS[half], RIGHT, strict=True):
                    instruction(builder, multiplication, tile, LEFT[half], of_outputs)
        for half in range(2):
            for vector in range(2):
                place = builder.gep(sums, [size(half * TILE_ROWS * TILE + vector * LANES)])
                instruction(builder, "tilestored64", SUMS[half][vector], place, row_bytes)
        return context.get_dummy_value()

    i64, bytes_ = types.int64, types.CPointer(types.int8)
    return types.void(bytes_, i64, codes, i64, types.CPointer(types.int32)), generate
