# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg"
"""Products of bfloat16 matrices with float32 sums by AMX-BF16; a word holds a pair (see `bfloat16_dots`).

One instruction multiplies 16 rows of A, of 16 words each, and 16 columns of B, and adds the products to a
register of 16 × 16 sums.
"""

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .amx import LEFT, RIGHT, SUMS, TILE_ROWS, instruction
from .llvm import size
from .vectors import LANES

SIDE = 2 * TILE_ROWS
"""Rows and columns of C for each call: those of four registers of sums."""

DEPTH = TILE_ROWS
"""Words of a row that one instruction multiplies; `count` of `multiply_square` must be a multiple."""


@intrinsic
def multiply_square(typing, count, a, a_row, a_step, b, b_row, c, c_row, add):
    """C = A · B, or C += A · B if `add`, for SIDE rows and columns of C and `count` words.

    a: words, `a_row` from one row to the next; after DEPTH words of a row, the next ones are `a_step` further
    b: words, `b_row` from one word of A to the next; c: float32, `c_row` from one row to the next
    """

    def generate(context, builder, signature, arguments):
        count, a, a_row, a_step, b, b_row, c, c_row, add = arguments
        a_bytes, b_bytes, c_bytes = (builder.mul(each, size(4)) for each in (a_row, b_row, c_row))
        second_rows = builder.mul(a_row, size(TILE_ROWS))
        places = [
            (tile, builder.gep(row, [size(column * LANES)]))
            for half, row in enumerate((c, builder.gep(c, [builder.mul(c_row, size(TILE_ROWS))])))
            for column, tile in enumerate(SUMS[half])
        ]
        with builder.if_else(add) as (then, otherwise):
            with then:
                for tile, place in places:
                    instruction(builder, "tileloadd64", tile, place, c_bytes)
            with otherwise:
                for tile, _ in places:
                    instruction(builder, "tilezero", tile)
        with cgutils.for_range(builder, builder.sdiv(count, size(DEPTH))) as loop:
            rows = builder.gep(a, [builder.mul(loop.index, a_step)])
            columns = builder.gep(b, [builder.mul(loop.index, builder.mul(b_row, size(DEPTH)))])
            instruction(builder, "tileloadd64", RIGHT[0], columns, b_bytes)
            instruction(builder, "tileloadd64", LEFT[0], rows, a_bytes)
            instruction(builder, "tileloadd64", RIGHT[1], builder.gep(columns, [size(LANES)]), b_bytes)
            instruction(builder, "tileloadd64", LEFT[1], builder.gep(rows, [second_rows]), a_bytes)
            for half in range(2):
                for tile, of_columns in zip(SUMS[half], RIGHT, strict=True):
                    instruction(builder, "tdpbf16ps", tile, LEFT[half], of_columns)
        for tile, place in places:
            instruction(builder, "tilestored64", tile, place, c_bytes)
        return context.get_dummy_value()

    i64, words, sums = types.int64, types.CPointer(types.uint32), types.CPointer(types.float32)
    return types.void(i64, words, i64, i64, words, i64, sums, i64, types.boolean), generate
