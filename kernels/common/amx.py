"""LLVM code for AMX, the matrix instructions of x86, which have eight registers of 16 rows of 64 bytes; and
products of bfloat16 matrices with float32 sums. A word holds a pair of their elements (see `bfloat16_dots`).

One instruction multiplies 16 rows of A, of 16 words each, and 16 columns of B, and adds the products to a
register of 16 × 16 sums.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils

from .emits import ANY, BOOL, INT, TO_FLOATS, TO_WORDS, VOID, Intrinsic, emits
from .jit import compiled
from .llvm import I8, I64, SECOND_LEVEL, prefetch_line, size
from .numba_tools import has_feature
from .vectors import LANES

TILE_ROWS = 16
ROW_BYTES = 64
SHAPES_BYTES = 64

SUMS = ((0, 1), (2, 3))
"""Registers of 16 × 16 sums, for two halves of the rows and of the columns of a product."""
LEFT, RIGHT = (4, 5), (6, 7)
"""Registers for two halves of the left matrix's rows, and for two halves of the right matrix's columns."""


SIDE = 2 * TILE_ROWS
"""Rows and columns of C of `multiply_square`. `multiply_wide` has half the rows and twice the columns."""

DEPTH = TILE_ROWS
"""Words of a row that one instruction multiplies; `count` must be a multiple."""


@cache
def is_compiled() -> bool:
    """Whether the processor that numba compiles for has AMX for bytes and for bfloat16, and AVX512-BF16."""
    return all(map(has_feature, ("amx-int8", "amx-bf16", "avx512bf16")))


@cache
def available() -> bool:
    """Whether kernels are compiled for AMX and the system lets this process use it."""
    return is_compiled() and torch.cpu._init_amx()


@compiled
def load_shapes(shapes):
    """Sets the shapes of the registers: all have TILE_ROWS rows of ROW_BYTES.

    shapes: SHAPES_BYTES of memory
    """
    for index in range(SHAPES_BYTES):
        shapes[index] = np.uint8(0)
    shapes[0] = np.uint8(1)
    for tile in range(8):
        shapes[16 + 2 * tile] = np.uint8(ROW_BYTES)
        shapes[48 + tile] = np.uint8(TILE_ROWS)
    _configure(shapes)


@emits(VOID, ANY)
def _configure(builder, shapes):
    instruction(builder, "ldtilecfg", shapes)


@emits(VOID)
def release_tiles(builder):
    """Frees the tiles, so that the system doesn't save them when it switches threads."""
    instruction(builder, "tilerelease")


def instruction(builder: ir.IRBuilder, name: str, *operands: int | ir.Value) -> None:
    """Emits an instruction of AMX, or nothing for a processor without it. An int names a tile register."""
    if not is_compiled():
        return
    values = [ir.Constant(I8, each) if isinstance(each, int) else each for each in operands]
    values = [
        builder.bitcast(each, I8.as_pointer()) if isinstance(each.type, ir.PointerType) else each
        for each in values
    ]
    assert all(each.type in (I8, I64, I8.as_pointer()) for each in values)
    kind = ir.FunctionType(ir.VoidType(), [each.type for each in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)


def _product(rows: int, columns: int) -> Intrinsic:
    """The function that computes C = A · B, or C += A · B if `add`, for `count` words, and `rows` × `columns`
    registers of sums, at most four.

    a: words, `a_row` from one row to the next; after DEPTH words of a row, the next ones are `a_step` further
    b: words, `b_row` from one word of A to the next; c: float32, `c_row` from one row to the next
    With each DEPTH words it prefetches `lines` cache lines from `later` on, then the next ones.
    """

    @emits(VOID, INT, TO_WORDS, INT, INT, TO_WORDS, INT, TO_FLOATS, INT, BOOL, TO_WORDS, INT)
    def multiply(builder, count, a, a_row, a_step, b, b_row, c, c_row, add, later, lines):
        _emit(builder, rows, columns, count, a, a_row, a_step, b, b_row, c, c_row, add, later, lines)

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
