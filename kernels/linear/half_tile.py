"""Products of a few rows with a strip of bfloat16 or float16 weights, and writing a strip's results.

For each pair of inputs a strip holds vectors of 16 outputs, 64 bytes each: words of two bfloat16 values, or
the first float16 values of all outputs and then the second ones. Activations are pairs of bfloat16 for
`vdpbf16ps`. Otherwise they are float32, and weights are widened in registers.
"""

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils

from ..common import bfloat16_dots
from ..common.bfloat16_dots import add_pair_products
from ..common.emits import ANY, BOOL, INT, TO_FLOATS, TO_WORDS, VOID, Intrinsic, branch, emits
from ..common.llvm import F32, SECOND_LEVEL, prefetch_line, read, size, write
from ..common.numba_tools import has_feature
from ..common.vectors import FLOATS, LANES, WORDS, apply, read_floats, splat, words, write_floats, zeros

MULTIPLIES_PAIRS = bfloat16_dots.available()
"""Whether the processor multiplies activations in pairs of bfloat16; otherwise they are float32."""

PAIR = {
    torch.bfloat16: np.uint32(0) if MULTIPLIES_PAIRS else np.uint64(0),
    torch.float16: np.uint64(0),
}
"""A value whose type is that of a pair of activations, by the dtype of the weights: uint32 for two bfloat16
values, uint64 for two float32 values."""

VECTORS = 4 if MULTIPLIES_PAIRS else 2
OUTPUTS = VECTORS * LANES
"""outputs of a strip"""
HALF_STRIP = OUTPUTS // 2

MAX_ROWS = 6
"""The most rows that are multiplied in one pass over the weights."""

STREAM_ROWS = MAX_ROWS if has_feature("avx512f") else 2
"""The most rows of which registers hold sums of all outputs of a strip, so that weights are read in order.
AVX2's 16 registers hold half a vector each: of more rows, they hold the sums of one vector each."""


def tiles(rows: range, lines: int, width: int = VECTORS) -> Intrinsic:
    """The function that computes sums[r, o] = sum over pairs p < count of x[r, p] · weights[p, o].

    It does so for the first `width` vectors of outputs of a strip and `number` rows, which is one of `rows`.

    x: pairs of values as `PAIR`, `stride` from one row to the next; weights: words [count, OUTPUTS] of values
    of the type of `kind`; sums: float32 [rows, OUTPUTS], added to if `add`. The pairs are added in order, so
    a row's result does not depend on the number of rows. With pair p the kernel prefetches `lines` cache
    lines from word `step` · p of `later` on, or one for each vector of outputs if there are more than
    STREAM_ROWS rows.
    """

    @emits(VOID, INT, INT, ANY, INT, TO_WORDS, TO_FLOATS, BOOL, TO_WORDS, INT, ANY)
    def multiply(builder, number, count, x, stride, weights, sums, add, later, step, kind, kinds):
        has_pairs, stored = kinds[2].dtype == types.uint32, kinds[9]

        def multiply_rows(number: int) -> None:
            starts = [builder.gep(x, [builder.mul(stride, size(row))]) for row in range(number)]
            vectors = width if number <= STREAM_ROWS else 1
            with cgutils.for_range(builder, size(width // vectors)) as part:
                output = builder.mul(part.index, size(vectors * LANES))
                column, line, to = (builder.gep(each, [output]) for each in (weights, later, sums))
                places = [
                    builder.gep(to, [size(row * OUTPUTS + vector * LANES)])
                    for row in range(number)
                    for vector in range(vectors)
                ]
                totals = zeros(builder, len(places))
                with builder.if_then(add):
                    for total, place in zip(totals, places, strict=True):
                        builder.store(read(builder, place, FLOATS), total)
                with cgutils.for_range(builder, count) as loop:
                    place = builder.gep(line, [builder.mul(loop.index, step)])
                    for index in range(lines if vectors == width else 1):
                        prefetch_line(builder, builder.gep(place, [size(index * LANES)]), SECOND_LEVEL)
                    pair = builder.gep(column, [builder.mul(loop.index, size(OUTPUTS))])
                    columns = [builder.gep(pair, [size(vector * LANES)]) for vector in range(vectors)]
                    of_rows = [builder.gep(start, [loop.index]) for start in starts]
                    if has_pairs:
                        _add_pairs(builder, totals, of_rows, columns)
                    else:
                        _add_floats(builder, totals, of_rows, columns, stored)
                for total, place in zip(totals, places, strict=True):
                    write(builder, builder.load(total), place)

        branch(builder, number, rows, multiply_rows)

    return multiply


def _add_pairs(
    builder: ir.IRBuilder, totals: list[ir.Value], pairs: list[ir.Value], columns: list[ir.Value]
) -> None:
    """Multiplies the pair of activations of each row with the vectors of weights. Adds the products to the
    row's sums.

    pairs: an address for each row; columns: addresses of vectors of weights; totals: the sums of the first
    row, a vector for each of `columns`, then those of the next row
    """
    vectors = [read(builder, column, WORDS) for column in columns]
    for row, pair in enumerate(pairs):
        of_row = totals[row * len(columns) : (row + 1) * len(columns)]
        add_pair_products(builder, of_row, builder.load(pair), vectors)


def _add_floats(
    builder: ir.IRBuilder,
    totals: list[ir.Value],
    pairs: list[ir.Value],
    columns: list[ir.Value],
    stored: types.Type,
) -> None:
    """As `_add_pairs`, in float32: first the products of the first values of all pairs, then of the second
    ones. Of the weights, half a column is in registers at a time. Processors without fused multiply-adds
    round twice."""
    for number, column in enumerate(columns):
        for place_in_pair, weight in enumerate(_widen(builder, column, stored)):
            for pair, total in zip(pairs, totals[number :: len(columns)], strict=True):
                place = builder.gep(builder.bitcast(pair, F32.as_pointer()), [size(place_in_pair)])
                value = splat(builder, builder.load(place), FLOATS)
                builder.store(apply(builder, "llvm.fmuladd", value, weight, builder.load(total)), total)


def _widen(builder: ir.IRBuilder, column: ir.Value, stored: types.Type) -> tuple[ir.Value, ir.Value]:
    """Reads a vector of weights, and returns the first values of all pairs and the second ones as float32."""
    if stored == types.int16:
        second = builder.gep(column, [size(LANES // 2)])
        return read_floats(builder, column, stored), read_floats(builder, second, stored)
    pairs = read(builder, column, WORDS)
    first, second = builder.shl(pairs, words(16)), builder.and_(pairs, words(0xFFFF0000))
    return builder.bitcast(first, FLOATS), builder.bitcast(second, FLOATS)


@emits(VOID, TO_FLOATS, TO_FLOATS, BOOL, ANY)
def write_half_strip(builder, sums, bias, biased, y, kinds):
    """Writes a row's results of half a strip, rounded to y's type: the sums, plus the bias if `biased`."""
    for start in range(0, HALF_STRIP, LANES):
        total = cgutils.alloca_once_value(builder, read(builder, builder.gep(sums, [size(start)]), FLOATS))
        with builder.if_then(biased):
            more = read(builder, builder.gep(bias, [size(start)]), FLOATS)
            builder.store(builder.fadd(builder.load(total), more), total)
        write_floats(builder, builder.load(total), builder.gep(y, [size(start)]), kinds[3].dtype)
