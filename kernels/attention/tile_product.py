"""Products of bfloat16 matrices with float32 sums; a word holds a pair (see `bfloat16_dots`)."""

from collections.abc import Callable

from llvmlite import ir
from numba.core import cgutils

from ..common.bfloat16_dots import add_lane_products
from ..common.emits import ANY, INT, TO_BYTES, TO_FLOATS, TO_WORDS, VOID, Intrinsic, emits
from ..common.llvm import I16, I32, SECOND_LEVEL, prefetch_line, read, size, write
from ..common.vectors import FLOATS, LANES, WORDS, splat
from ..pages.cells_cpu import LINE_BYTES

ROWS = 8
"""Rows of the result that a product computes at a time. With two vectors for each row, their sums fill half
of the 32 vector registers."""

_Ahead = Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value], None]
"""Emits the prefetches in one turn of a product's loop. It gets the number of the turn and the product's
arguments `later` and `ahead_by`."""


def _product(
    columns: int,
    ahead: _Ahead | None,
    words: int = 1,
    add: bool = False,
    rows: int = ROWS,
    apart: bool = False,
) -> Intrinsic:
    """Returns the function that multiplies `rows` rows of a matrix A by `columns` columns of a matrix B.

    It writes C[r, :] = sum over i < count of A[r, i] · B[i, :], or adds it to C if `add`.

    a: words, `a_row` from one row to the next and `a_step` from one i to the next; b: words, `b_row` from one
    i to the next; c: float32, `c_row` from one row to the next
    words: 1, 2 or 4 neighbouring words of a row of A for which each i stands. Lane words * j + k multiplies
    word k for column j, and at the end the lanes of a column are added.
    apart: whether the elements of a pair are not neighbours in B, but lie `b_row` words apart. Each i stands
    for two such rows of elements.
    later, ahead_by: say what to prefetch (see `_next_lines` and `_two_places`)
    """
    vectors = columns * words // LANES

    @emits(VOID, INT, TO_WORDS, INT, INT, TO_WORDS, INT, TO_FLOATS, INT, TO_BYTES, ANY)
    def multiply(builder, count, a, a_row, a_step, b, b_row, c, c_row, later, ahead_by):
        starts = [builder.gep(c, [builder.mul(c_row, size(row))]) for row in range(rows)]
        targets = [builder.gep(start, [size(at * LANES)]) for start in starts for at in range(vectors)]
        sums = [cgutils.alloca_once_value(builder, ir.Constant(FLOATS, None)) for _ in targets]
        if add:
            for total, place in zip(sums, targets, strict=True):
                builder.store(read(builder, place, FLOATS), total)
        with cgutils.for_range(builder, count) as loop:
            if ahead is not None:
                ahead(builder, loop.index, later, ahead_by)
            if apart:
                right = _pair_rows(builder, b, b_row, loop.index, vectors)
            else:
                column = builder.gep(b, [builder.mul(loop.index, b_row)])
                sources = [builder.gep(column, [size(at * LANES)]) for at in range(vectors)]
                right = [read(builder, place, WORDS) for place in sources]
            start = builder.gep(a, [builder.mul(loop.index, a_step)])
            for row in range(rows):
                left = _repeat(builder, builder.gep(start, [builder.mul(a_row, size(row))]), words)
                for at in range(vectors):
                    add_lane_products(builder, sums[row * vectors + at], left, right[at])
        for total, place in zip(sums, targets, strict=True):
            write(builder, _join(builder, builder.load(total), words), place)

    return multiply


def _pair_rows(
    builder: ir.IRBuilder, b: ir.Value, b_row: ir.Value, i: ir.Value, vectors: int
) -> list[ir.Value]:
    """Vectors of pairs: an element of row 2i of B, and the one below it."""
    above = builder.gep(b, [builder.mul(builder.mul(i, size(2)), b_row)])
    kind = ir.VectorType(I16, vectors * LANES)
    one, other = (read(builder, row, kind) for row in (above, builder.gep(above, [b_row])))
    found = []
    for first in range(0, vectors * LANES, LANES):
        order = [at + row * kind.count for at in range(first, first + LANES) for row in range(2)]
        mask = ir.Constant(ir.VectorType(I32, 2 * LANES), order)
        found.append(builder.bitcast(builder.shuffle_vector(one, other, mask), WORDS))
    return found


def _next_lines(count: int) -> _Ahead:
    """Prefetches `count` cache lines from i * `step` bytes after `later` on."""

    def prefetch(builder: ir.IRBuilder, i: ir.Value, later: ir.Value, step: ir.Value) -> None:
        first = builder.gep(later, [builder.mul(i, step)])
        for line in range(count):
            prefetch_line(builder, builder.gep(first, [size(line * LINE_BYTES)]), SECOND_LEVEL)

    return prefetch


def _two_places(builder: ir.IRBuilder, i: ir.Value, later: ir.Value, places: ir.Value) -> None:
    """Prefetches the cache lines that are places[2i] and places[2i + 1] bytes after `later`."""
    for number in range(2):
        at = builder.add(builder.mul(i, size(2)), size(number))
        place = builder.load(builder.gep(places, [at]))
        prefetch_line(builder, builder.gep(later, [place]), SECOND_LEVEL)


def _repeat(builder: ir.IRBuilder, place: ir.Value, count: int) -> ir.Value:
    """A vector that repeats the `count` words at a place."""
    if count == 1:
        return splat(builder, builder.load(place), WORDS)
    some = read(builder, place, ir.VectorType(I32, count))
    return builder.shuffle_vector(some, some, ir.Constant(WORDS, [lane % count for lane in range(LANES)]))


def _join(builder: ir.IRBuilder, total: ir.Value, words: int) -> ir.Value:
    """The sums of each `words` neighbouring lanes."""
    if words == 1:
        return total
    count = total.type.count
    half = ir.VectorType(I32, count // 2)
    even, odd = (ir.Constant(half, list(range(first, count, 2))) for first in (0, 1))
    pairs = builder.fadd(*(builder.shuffle_vector(total, total, lanes) for lanes in (even, odd)))
    return _join(builder, pairs, words // 2)


score_4 = _product(LANES // 4, _next_lines(2), words=4)
score_8 = _product(LANES // 2, _next_lines(1), words=2)
score_16_ahead, score_16 = (_product(LANES, ahead) for ahead in (_next_lines(1), None))
score_32_ahead, score_32 = (_product(2 * LANES, ahead) for ahead in (_next_lines(1), None))
add_16 = _product(LANES, None, add=True)
add_32_ahead, add_32 = (_product(2 * LANES, ahead, add=True) for ahead in (_two_places, None))
add_16_apart = _product(LANES, None, add=True, apart=True)
add_32_apart = _product(2 * LANES, _two_places, add=True, apart=True)
add_16_of_4 = _product(LANES, None, add=True, rows=4, apart=True)
add_32_of_4 = _product(2 * LANES, _two_places, add=True, rows=4, apart=True)
