# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Products of bfloat16 matrices with float32 sums; a word holds a pair (see `bfloat16_dots`)."""

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common.bfloat16_dots import add_lane_products
from ..common.llvm import I32, SECOND_LEVEL, prefetch_line, read, size, write
from ..common.vectors import FLOATS, LANES, WORDS, splat

ROWS = 8
"""Rows of the result that a product computes at a time. With two vectors for each row, their sums fill half
of the 32 vector registers."""

_Ahead = Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value], None]
"""Emits the prefetches in one turn of a product's loop. It gets the number of the turn and the product's
arguments `later` and `ahead_by`."""


def _product(columns: int, ahead: _Ahead | None, words: int = 1, add: bool = False):
    """Returns the function that multiplies ROWS rows of a matrix A by `columns` columns of a matrix B.

    It writes C[r, :] = sum over i < count of A[r, i] · B[i, :], or adds it to C if `add`.

    a: words, `a_row` from one row to the next and `a_step` from one i to the next; b: words, `b_row` from one
    i to the next; c: float32, `c_row` from one row to the next
    words: 1, or 2 for half as many columns. Then each i stands for two neighbouring words of a row of A: lane
    2j + k multiplies word k for column j, and at the end the two lanes of a column are added.
    later, ahead_by: say what to prefetch (see `_next_line` and `_two_places`)
    """
    vectors = columns * words // LANES

    @intrinsic
    def multiply(typing, count, a, a_row, a_step, b, b_row, c, c_row, later, ahead_by):
        def generate(context, builder, signature, arguments):
            count, a, a_row, a_step, b, b_row, c, c_row, later, ahead_by = arguments
            starts = [builder.gep(c, [builder.mul(c_row, size(row))]) for row in range(ROWS)]
            targets = [builder.gep(start, [size(at * LANES)]) for start in starts for at in range(vectors)]
            sums = [cgutils.alloca_once_value(builder, ir.Constant(FLOATS, None)) for _ in targets]
            if add:
                for total, place in zip(sums, targets, strict=True):
                    builder.store(read(builder, place, FLOATS), total)
            with cgutils.for_range(builder, count) as loop:
                if ahead is not None:
                    ahead(builder, loop.index, later, ahead_by)
                column = builder.gep(b, [builder.mul(loop.index, b_row)])
                sources = [builder.gep(column, [size(at * LANES)]) for at in range(vectors)]
                right = [read(builder, place, WORDS) for place in sources]
                start = builder.gep(a, [builder.mul(loop.index, a_step)])
                for row in range(ROWS):
                    left = _repeated(builder, builder.gep(start, [builder.mul(a_row, size(row))]), words)
                    for at in range(vectors):
                        add_lane_products(builder, sums[row * vectors + at], left, right[at])
            for total, place in zip(sums, targets, strict=True):
                write(builder, _joined(builder, builder.load(total), words), place)
            return context.get_dummy_value()

        i64, words_, floats = types.int64, types.CPointer(types.uint32), types.CPointer(types.float32)
        bytes_ = types.CPointer(types.uint8)
        return types.void(i64, words_, i64, i64, words_, i64, floats, i64, bytes_, ahead_by), generate

    return multiply


def _next_line(builder: ir.IRBuilder, i: ir.Value, later: ir.Value, step: ir.Value) -> None:
    """Prefetches the cache line that is i * `step` bytes after `later`."""
    prefetch_line(builder, builder.gep(later, [builder.mul(i, step)]), SECOND_LEVEL)


def _two_places(builder: ir.IRBuilder, i: ir.Value, later: ir.Value, places: ir.Value) -> None:
    """Prefetches the cache lines that are places[2i] and places[2i + 1] bytes after `later`."""
    for number in range(2):
        at = builder.add(builder.mul(i, size(2)), size(number))
        place = builder.load(builder.gep(places, [at]))
        prefetch_line(builder, builder.gep(later, [place]), SECOND_LEVEL)


def _repeated(builder: ir.IRBuilder, place: ir.Value, count: int) -> ir.Value:
    """A vector that repeats the `count` words at a place."""
    if count == 1:
        return splat(builder, builder.load(place), WORDS)
    some = read(builder, place, ir.VectorType(I32, count))
    return builder.shuffle_vector(some, some, ir.Constant(WORDS, [lane % count for lane in range(LANES)]))


def _joined(builder: ir.IRBuilder, total: ir.Value, words: int) -> ir.Value:
    """The sums of each `words` neighbouring lanes."""
    if words == 1:
        return total
    half = ir.VectorType(I32, LANES // 2)
    even, odd = (ir.Constant(half, list(range(first, LANES, 2))) for first in (0, 1))
    return builder.fadd(*(builder.shuffle_vector(total, total, lanes) for lanes in (even, odd)))


score_8 = _product(LANES // 2, _next_line, words=2)
score_16_ahead, score_16 = (_product(LANES, ahead) for ahead in (_next_line, None))
score_32_ahead, score_32 = (_product(2 * LANES, ahead) for ahead in (_next_line, None))
add_16 = _product(LANES, None, add=True)
add_32_ahead, add_32 = (_product(2 * LANES, ahead, add=True) for ahead in (_two_places, None))
