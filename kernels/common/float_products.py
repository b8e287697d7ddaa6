"""Products of small float32 matrices whose sums stay in registers."""

from llvmlite import ir
from numba.core import cgutils

from .emits import BOOL, INT, TO_FLOATS, VOID, branch, emits
from .llvm import call_outlined, read, size, write
from .numba_tools import has_feature
from .vectors import FLOATS, fma, splat, zeros

ROWS = 12 if has_feature("avx512f") else 6
"""Rows that are multiplied at a time, at most. Their sums take 12 registers: AVX2 has 16, of which a row of
LANES sums takes two."""


@emits(VOID, INT, INT, TO_FLOATS, INT, INT, TO_FLOATS, INT, TO_FLOATS, INT, BOOL)
def multiply_floats(builder, rows, count, a, a_row, a_step, b, b_row, c, c_row, add):
    """c[r, :] = sum over i < count of a[r, i] · b[i, :], for 1 to ROWS rows and LANES columns, or adds it to
    c if `add`.

    a: `a_row` elements from one row to the next and `a_step` from one i to the next; b, c: `b_row` and
    `c_row` elements from one row to the next. The products are added in order, whatever the number of rows.
    """
    arguments = rows, count, a, a_row, a_step, b, b_row, c, c_row, add
    call_outlined(builder, "multiply_floats", _emit, arguments)


def _emit(builder: ir.IRBuilder, rows: ir.Value, *arguments: ir.Value) -> None:
    branch(builder, rows, range(1, ROWS + 1), lambda number: _emit_rows(builder, number, *arguments))


def _emit_rows(
    builder: ir.IRBuilder,
    rows: int,
    count: ir.Value,
    a: ir.Value,
    a_row: ir.Value,
    a_step: ir.Value,
    b: ir.Value,
    b_row: ir.Value,
    c: ir.Value,
    c_row: ir.Value,
    add: ir.Value,
) -> None:
    targets = [builder.gep(c, [builder.mul(c_row, size(row))]) for row in range(rows)]
    sums = zeros(builder, rows)
    with builder.if_then(add):
        for total, place in zip(sums, targets, strict=True):
            builder.store(read(builder, place, FLOATS), total)
    with cgutils.for_range(builder, count) as loop:
        column = read(builder, builder.gep(b, [builder.mul(loop.index, b_row)]), FLOATS)
        start = builder.gep(a, [builder.mul(loop.index, a_step)])
        for row, total in enumerate(sums):
            left = splat(builder, builder.load(builder.gep(start, [builder.mul(a_row, size(row))])), FLOATS)
            builder.store(fma(builder, left, column, builder.load(total)), total)
    for total, place in zip(sums, targets, strict=True):
        write(builder, builder.load(total), place)
