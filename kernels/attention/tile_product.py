# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Products of bfloat16 matrices with float32 sums; a word holds a pair (see `bfloat16_dots`)."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common.bfloat16_dots import add_pair_products
from ..common.llvm import read, size, write
from ..common.vectors import FLOATS, LANES, WORDS

ROWS = 8
"""Rows of C for each call: with two vectors a row, half of the 32 registers hold sums."""


def _tile_product(vectors: int):
    """C[r, :] = sum over i < count of A[r, i] · B[i, :], for ROWS rows and vectors × LANES columns.

    a: words, `a_row` from one row to the next and `a_step` from one i to the next; b: words, `b_step` from
    one i to the next; c: float32, `c_row` from one row to the next, added to if `add`.
    """

    @intrinsic
    def multiply(typing, count, a, a_row, a_step, b, b_step, c, c_row, add):
        def generate(context, builder, signature, arguments):
            count, a, a_row, a_step, b, b_step, c, c_row, add = arguments
            places = _places(builder, c, c_row, vectors)
            sums = [cgutils.alloca_once_value(builder, ir.Constant(FLOATS, None)) for _ in places]
            with builder.if_then(add):
                for total, place in zip(sums, places, strict=True):
                    builder.store(read(builder, place, FLOATS), total)
            with cgutils.for_range(builder, count) as loop:
                column = builder.gep(b, [builder.mul(loop.index, b_step)])
                row = builder.gep(a, [builder.mul(loop.index, a_step)])
                _add_products(builder, sums, row, a_row, column, vectors)
            for total, place in zip(sums, places, strict=True):
                write(builder, builder.load(total), place)
            return context.get_dummy_value()

        words, sums = types.CPointer(types.uint32), types.CPointer(types.float32)
        i64 = types.int64
        return types.void(i64, words, i64, i64, words, i64, sums, i64, types.boolean), generate

    return multiply


def _places(builder: ir.IRBuilder, c: ir.Value, c_row: ir.Value, vectors: int) -> list[ir.Value]:
    """The addresses of the vectors of the result, row by row."""
    rows = [builder.gep(c, [builder.mul(c_row, size(row))]) for row in range(ROWS)]
    return [builder.gep(row, [size(vector * LANES)]) for row in rows for vector in range(vectors)]


def _add_products(
    builder: ir.IRBuilder, sums: list[ir.Value], a: ir.Value, a_row: ir.Value, b: ir.Value, vectors: int
) -> None:
    """Add the products of one column of A and one row of B."""
    columns = [read(builder, builder.gep(b, [size(vector * LANES)]), WORDS) for vector in range(vectors)]
    for row in range(ROWS):
        word = builder.load(builder.gep(a, [builder.mul(a_row, size(row))]))
        add_pair_products(builder, sums[row * vectors : (row + 1) * vectors], word, columns)


multiply_narrow = _tile_product(1)
multiply_wide = _tile_product(2)
