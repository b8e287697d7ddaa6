"""Transposes of 16 × 16 words in registers."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..common.llvm import read, size, write
from ..common.vectors import LANES, WORDS


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
    """One step of the transpose, which takes the rows in pairs that are `distance` apart. In each square of
    2 × `distance` columns, the right half of the first row and the left half of the second are exchanged."""
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
