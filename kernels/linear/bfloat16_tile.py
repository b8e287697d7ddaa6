"""Products of a few rows with a strip of bfloat16 weights, and writing a strip's results.

A strip holds a word for each output and pair of inputs. Activations are pairs of bfloat16 for `vdpbf16ps`;
for other processors they are float32, and weights are widened in registers.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from ..common import bfloat16_dots
from ..common.bfloat16_dots import add_pair_products
from ..common.emits import ANY, BOOL, INT, TO_FLOATS, TO_WORDS, VOID, Intrinsic, branch, emits
from ..common.llvm import F32, SECOND_LEVEL, prefetch_line, read, size, write
from ..common.numba_tools import has_feature
from ..common.vectors import FLOATS, LANES, WORDS, apply, read_vectors, splat, words, write_floats, zeros

MULTIPLIES_PAIRS = bfloat16_dots.available()
"""Whether the processor multiplies activations in pairs of bfloat16; otherwise they are float32."""

PAIR = np.uint32(0) if MULTIPLIES_PAIRS else np.uint64(0)
"""of the type of a pair of activations"""

VECTORS = 4 if MULTIPLIES_PAIRS else 2
OUTPUTS = VECTORS * LANES
"""outputs of a strip"""
HALF = OUTPUTS // 2

MAX_ROWS = 6
"""The most rows that are multiplied in one pass over the weights."""

STREAM_ROWS = MAX_ROWS if has_feature("avx512f") else 2
"""The most rows of which registers hold sums of all outputs of a strip, so that weights are read in order.
AVX2's 16 registers hold half a vector each: of more rows, they hold the sums of one vector each."""


def tiles(rows: range, lines: int, width: int = VECTORS) -> Intrinsic:
    """The function that computes sums[r, o] = sum over pairs p < count of x[r, p] · weights[p, o].

    It does so for the first `width` vectors of outputs of a strip and `number` rows, which is one of `rows`.

    x: pairs of values as `PAIR`, `stride` from one row to the next; weights: words [count, OUTPUTS]; sums:
    float32 [rows, OUTPUTS], added to if `add`. The pairs are added in order, so a row's result does not
    depend on the number of rows. With pair p the kernel prefetches `lines` cache lines from word `step` · p
    of `later` on, or one for each vector of outputs if there are more than STREAM_ROWS rows.
    """

    @emits(VOID, INT, INT, ANY, INT, TO_WORDS, TO_FLOATS, BOOL, TO_WORDS, INT)
    def multiply(builder, number, count, x, stride, weights, sums, add, later, step):
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
                    values = read_vectors(builder, pair, WORDS, vectors)
                    of_rows = [builder.gep(start, [loop.index]) for start in starts]
                    add_products(builder, totals, of_rows, values)
                for total, place in zip(totals, places, strict=True):
                    write(builder, builder.load(total), place)

        branch(builder, number, rows, multiply_rows)

    add_products = _add_pairs if MULTIPLIES_PAIRS else _add_floats
    return multiply


def _add_pairs(
    builder: ir.IRBuilder, totals: list[ir.Value], pairs: list[ir.Value], columns: list[ir.Value]
) -> None:
    """Multiplies the pair of activations of each row with the vectors of weights. Adds the products to the
    row's sums.

    pairs: an address for each row; columns: vectors of weights; totals: the sums of the first row, a vector
    for each of `columns`, then those of the next row
    """
    for row, pair in enumerate(pairs):
        of_row = totals[row * len(columns) : (row + 1) * len(columns)]
        add_pair_products(builder, of_row, builder.load(pair), columns)


def _add_floats(
    builder: ir.IRBuilder, totals: list[ir.Value], pairs: list[ir.Value], columns: list[ir.Value]
) -> None:
    """As `_add_pairs`, in float32: first the products of the first values of all pairs, then of the second
    ones. Of the weights, half a column is in registers at a time. Processors without fused multiply-adds
    round twice."""
    for number, column in enumerate(columns):
        halves = builder.shl(column, words(16)), builder.and_(column, words(0xFFFF0000))
        for half, bits in enumerate(halves):
            weight = builder.bitcast(bits, FLOATS)
            for pair, total in zip(pairs, totals[number :: len(columns)], strict=True):
                place = builder.gep(builder.bitcast(pair, F32.as_pointer()), [size(half)])
                value = splat(builder, builder.load(place), FLOATS)
                builder.store(apply(builder, "llvm.fmuladd", value, weight, builder.load(total)), total)


@emits(VOID, TO_FLOATS, TO_FLOATS, BOOL, types.CPointer(types.uint16))
def write_half(builder, sums, bias, biased, y):
    """Writes a row's results of half a strip, rounded to bfloat16: the sums, plus the bias if `biased`."""
    for start in range(0, HALF, LANES):
        total = cgutils.alloca_once_value(builder, read(builder, builder.gep(sums, [size(start)]), FLOATS))
        with builder.if_then(biased):
            more = read(builder, builder.gep(bias, [size(start)]), FLOATS)
            builder.store(builder.fadd(builder.load(total), more), total)
        write_floats(builder, builder.load(total), builder.gep(y, [size(start)]), types.uint16)
