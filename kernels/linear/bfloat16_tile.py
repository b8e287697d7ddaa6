"""Products of a few rows of bfloat16 values with a strip of weights, by AVX512-BF16's `vdpbf16ps`."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common.bfloat16_dots import add_pair_products, round_words
from ..common.llvm import SECOND_LEVEL, Intrinsic, prefetch_line, read, size, write
from ..common.vectors import FLOATS, LANES, WORDS

VECTORS = 4
OUTPUTS = VECTORS * LANES
"""outputs of a strip"""

MAX_ROWS = 6
"""The most rows that are multiplied in one pass over the weights. Their sums take 24 of the 32 registers."""


def tile(rows: int, lines: int) -> Intrinsic:
    """sums[r, o] = sum over pairs p < count of x[r, p] · weights[p, o], for `rows` rows and one strip.

    x: words of two values, `stride` from one row to the next; weights: words [count, OUTPUTS]; sums: float32
    [rows, OUTPUTS], added to if `add`. The pairs are added in order, so a row's result does not depend on the
    number of rows. With pair p the kernel prefetches `lines` cache lines from word `step` · p of `later` on.
    """

    @intrinsic
    def multiply(typing, count, x, stride, weights, sums, add, later, step):
        def generate(context, builder, signature, arguments):
            count, x, stride, weights, sums, add, later, step = arguments
            starts = [builder.gep(x, [builder.mul(stride, size(row))]) for row in range(rows)]
            places = [builder.gep(sums, [size(vector * LANES)]) for vector in range(rows * VECTORS)]
            totals = [cgutils.alloca_once_value(builder, ir.Constant(FLOATS, None)) for _ in places]
            with builder.if_then(add):
                for total, place in zip(totals, places, strict=True):
                    builder.store(read(builder, place, FLOATS), total)
            with cgutils.for_range(builder, count) as loop:
                pair = builder.gep(weights, [builder.mul(loop.index, size(OUTPUTS))])
                vectors = [builder.gep(pair, [size(vector * LANES)]) for vector in range(VECTORS)]
                line = builder.gep(later, [builder.mul(loop.index, step)])
                for index in range(lines):
                    prefetch_line(builder, builder.gep(line, [size(index * LANES)]), SECOND_LEVEL)
                columns = [read(builder, vector, WORDS) for vector in vectors]
                for row, start in enumerate(starts):
                    word = builder.load(builder.gep(start, [loop.index]))
                    of_row = totals[row * VECTORS : (row + 1) * VECTORS]
                    add_pair_products(builder, of_row, word, columns)
            for total, place in zip(totals, places, strict=True):
                write(builder, builder.load(total), place)
            return context.get_dummy_value()

        words, floats, i64 = types.CPointer(types.uint32), types.CPointer(types.float32), types.int64
        return types.void(i64, words, i64, words, floats, types.boolean, words, i64), generate

    return multiply


@intrinsic
def write_strip(typing, sums, bias, biased, y):
    """Writes a row's results of a strip, rounded to bfloat16: the sums, plus the bias if `biased`."""

    def generate(context, builder, signature, arguments):
        sums, bias, biased, y = arguments
        for first in range(0, OUTPUTS, 2 * LANES):
            values = []
            for start in (first, first + LANES):
                total = cgutils.alloca_once_value(
                    builder, read(builder, builder.gep(sums, [size(start)]), FLOATS)
                )
                with builder.if_then(biased):
                    more = read(builder, builder.gep(bias, [size(start)]), FLOATS)
                    builder.store(builder.fadd(builder.load(total), more), total)
                values.append(builder.load(total))
            write(builder, round_words(builder, *values), builder.gep(y, [size(first)]))
        return context.get_dummy_value()

    floats = types.CPointer(types.float32)
    return types.void(floats, floats, types.boolean, types.CPointer(types.uint16)), generate
