"""Products of bfloat16 matrices with float32 sums by AMX-BF16; a word holds a pair (see `bfloat16_dots`).

One instruction multiplies 16 rows of A, of 16 words each, and 16 columns of B, and adds the products to a
register of 16 × 16 sums.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .amx import LEFT, RIGHT, TILE_ROWS, instruction
from .llvm import SECOND_LEVEL, Intrinsic, prefetch_line, size
from .vectors import LANES

SIDE = 2 * TILE_ROWS
"""Rows and columns of C of `multiply_square`. `multiply_wide` has half the rows and twice the columns."""

DEPTH = TILE_ROWS
"""Words of a row that one instruction multiplies; `count` must be a multiple."""


def _product(rows: int, columns: int) -> Intrinsic:
    """The function that computes C = A · B, or C += A · B if `add`, for `count` words, and `rows` × `columns`
    registers of sums, at most four.

    a: words, `a_row` from one row to the next; after DEPTH words of a row, the next ones are `a_step` further
    b: words, `b_row` from one word of A to the next; c: float32, `c_row` from one row to the next
    With each DEPTH words it prefetches `lines` cache lines from `later` on, then the next ones.
    """

    @intrinsic
    def multiply(typing, count, a, a_row, a_step, b, b_row, c, c_row, add, later, lines):
        def generate(context, builder, signature, arguments):
            _emit(builder, rows, columns, *arguments)
            return context.get_dummy_value()

        i64, words, sums = types.int64, types.CPointer(types.uint32), types.CPointer(types.float32)
        return types.void(i64, words, i64, i64, words, i64, sums, i64, types.boolean, words, i64), generate

    return multiply


def _emit(builder: ir.IRBuilder, rows: int, columns: int, *arguments: ir.Value) -> None:
    count, a, a_row, a_step, b, b_row, c, c_row, add, later, lines = arguments
    a_bytes, b_bytes, c_bytes = (builder.mul(each, size(4)) for each in (a_row, b_row, c_row))
    places = []
    for row in range(rows):
        start = builder.gep(c, [builder.mul(c_row, size(row * TILE_ROWS))])
        places += [builder.gep(start, [size(column * LANES)]) for column in range(columns)]
    sums = list(enumerate(places))
    with builder.if_else(add) as (then, otherwise):
        with then:
            for tile, place in sums:
                instruction(builder, "tileloadd64", tile, place, c_bytes)
        with otherwise:
            for tile, _ in sums:
                instruction(builder, "tilezero", tile)
    with cgutils.for_range(builder, builder.sdiv(count, size(DEPTH))) as loop:
        first = builder.gep(later, [builder.mul(loop.index, builder.mul(lines, size(LANES)))])
        with cgutils.for_range(builder, lines) as line:
            place = builder.gep(first, [builder.mul(line.index, size(LANES))])
            prefetch_line(builder, place, SECOND_LEVEL)
        of_a = builder.gep(a, [builder.mul(loop.index, a_step)])
        of_b = builder.gep(b, [builder.mul(loop.index, builder.mul(b_row, size(DEPTH)))])
        for row in range(rows):
            place = builder.gep(of_a, [builder.mul(a_row, size(row * TILE_ROWS))])
            instruction(builder, "tileloadd64", LEFT[row], place, a_bytes)
        for column in range(columns):
            right = RIGHT[column % len(RIGHT)]
            instruction(builder, "tileloadd64", right, builder.gep(of_b, [size(column * LANES)]), b_bytes)
            for row in range(rows):
                instruction(builder, "tdpbf16ps", row * columns + column, LEFT[row], right)
    for tile, place in sums:
        instruction(builder, "tilestored64", tile, place, c_bytes)


multiply_square, multiply_wide = _product(2, 2), _product(1, 4)
