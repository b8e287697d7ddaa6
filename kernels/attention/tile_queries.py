"""The queries of an item in the order in which tiles multiply them (see `tiles`)."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..common.jit import compiled_fast
from ..common.llvm import read, size, write
from ..common.numba_tools import pointer, shift
from ..common.vectors import LANES, WORDS
from .items import HEAD_DIM, Q_STRIDE, REPEAT, Q
from .plan import TOKEN, TOKENS


@compiled_fast
def load_queries(arguments, item, head, lanes, query, copied):
    """query[w, lane] = word w of a query, for an item's queries; zeros in unused lanes.

    copied: memory for LANES queries
    """
    half = arguments[HEAD_DIM] // 2
    if half % LANES > 0:
        load_words(arguments, item, head, lanes, 1, query)
        return
    for first in range(0, lanes, LANES):
        some = min(LANES, item[TOKENS] * arguments[REPEAT] - first)
        for w in range(max(0, some) * half, LANES * half):
            copied[w] = np.uint32(0)
        for lane in range(some):
            source, to = _query_at(arguments, item, head, first + lane), shift(copied, lane * half)
            for w in range(half):
                to[w] = source[w]
        for w in range(0, half, LANES):
            transpose_words(shift(copied, w), half, shift(query, w * lanes + first), lanes)


@compiled_fast
def load_words(arguments, item, head, lanes, words, query):
    """As `load_queries`, word by word: query[w // words, lane, w % words] = word w of a query.

    lanes: the number of queries that `query` has room for
    """
    half = arguments[HEAD_DIM] // 2
    for i in range(half * lanes):
        query[i] = np.uint32(0)
    for lane in range(item[TOKENS] * arguments[REPEAT]):
        source = _query_at(arguments, item, head, lane)
        for w in range(half):
            query[(w // words * lanes + lane) * words + w % words] = source[w]


@compiled_fast
def _query_at(arguments, item, head, lane):
    """Query number `lane` of an item, as a pointer to words of two elements."""
    head_dim, repeat = arguments[HEAD_DIM], arguments[REPEAT]
    row, query_head = item[TOKEN] + lane // repeat, head * repeat + lane % repeat
    place = row * arguments[Q_STRIDE] + query_head * head_dim
    return shift(pointer(arguments[Q], np.uint32(0)), place // 2)


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
