# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg"
"""Products of bfloat16 matrices with float32 sums by AMX-BF16; a word holds a pair (see `bfloat16_dots`).

One instruction multiplies 16 rows of A, of 16 words each, and 16 columns of B, and adds the products to a
register of 16 × 16 sums.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common.amx import LEFT, RIGHT, SUMS, TILE_ROWS, instruction
from ..common.llvm import read, size, write
from ..common.vectors import LANES, WORDS

SIDE = 2 * TILE_ROWS
"""Rows and columns of C for each call: those of four registers of sums."""

DEPTH = TILE_ROWS
"""Words of a row that one instruction multiplies; `count` of `multiply_square` must be a multiple."""


@intrinsic
def multiply_square(typing, count, a, a_row, b, b_row, c, c_row, add):
    """C = A · B, or C += A · B if `add`, for SIDE rows and columns of C and `count` words.

    a: words, `a_row` from one row to the next; b: words, `b_row` from one word of A to the next; c: float32,
    `c_row` from one row to the next
    """

    def generate(context, builder, signature, arguments):
        count, a, a_row, b, b_row, c, c_row, add = arguments
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
            first = builder.mul(loop.index, size(DEPTH))
            rows = builder.gep(a, [first])
            columns = builder.gep(b, [builder.mul(first, b_row)])
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
    return types.void(i64, words, i64, words, i64, sums, i64, types.boolean), generate


@intrinsic
def transpose_words(typing, source, source_row, target, target_row):
    """Writes the transpose of 16 × 16 words; the rows lie `source_row` and `target_row` words apart."""

    def generate(context, builder, signature, arguments):
        source, source_row, target, target_row = arguments
        rows = [
            read(builder, builder.gep(source, [builder.mul(source_row, size(row))]), WORDS)
            for row in range(LANES)
        ]
        distance = 1
        while distance < LANES:
            rows = _exchange(builder, rows, distance)
            distance *= 2
        for row, value in enumerate(rows):
            write(builder, value, builder.gep(target, [builder.mul(target_row, size(row))]))
        return context.get_dummy_value()

    i64, words = types.int64, types.CPointer(types.uint32)
    return types.void(words, i64, words, i64), generate


def _exchange(builder: ir.IRBuilder, rows: list[ir.Value], distance: int) -> list[ir.Value]:
    """Exchanges the upper columns of each row with the lower columns of the row `distance` further, in
    squares of twice that size."""
    found = list(rows)
    for row in range(LANES):
        if row & distance:
            continue
        other = row | distance
        lower = [lane + LANES - distance if lane & distance else lane for lane in range(LANES)]
        upper = [lane + LANES if lane & distance else lane + distance for lane in range(LANES)]
        for at, order in ((row, lower), (other, upper)):
            mask = ir.Constant(WORDS, order)
            found[at] = builder.shuffle_vector(rows[row], rows[other], mask)
    return found
