"""Dot products of two queries with four keys at a time, for numba kernels.

LLVM would vectorise one key at a time, and then spend as long on the sums across lanes as on the products.
"""

from collections.abc import Iterable, Sequence

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common import bfloat16_dots
from ..common.emits import ANY, FLOAT, INT, TO_FLOATS, VOID, emits
from ..common.llvm import F32, I32, read, size, widen, word, write
from ..common.numba_tools import has_feature
from ..common.vectors import fma, read_floats
from ..pages.cells_cpu import read_scales

WIDTH = 16 if has_feature("avx512f") else 8
"""lanes of a vector register"""

PAIRS = bfloat16_dots.available()
"""whether the processor multiplies pairs of bfloat16"""

KEYS = 4

_FLOATS = ir.VectorType(F32, WIDTH)


@intrinsic
def queries_at(typing, address, kind, stored):
    """Returns the address of copied queries as a pointer to their elements.

    The elements are bfloat16 if the model's queries and the cache are bfloat16 and the processor multiplies
    pairs of bfloat16, otherwise float32.

    kind, stored: values with the types of the elements of q and of the cache
    """
    element = types.uint16 if PAIRS and kind == stored == types.uint16 else types.float32

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(element)(types.int64, kind, stored), generate


@emits(VOID, ANY, INT, ANY, INT)
def set_query(builder, query, index, source, place, kinds):
    """query[index] = source[place], as float32 if `query` is float32"""
    value = builder.load(builder.gep(source, [place]))
    if kinds[0].dtype == FLOAT:
        value = widen(builder, value, kinds[2].dtype)
    builder.store(value, builder.gep(query, [index]))


@emits(VOID, ANY, INT, INT, INT, ANY, ANY, FLOAT, TO_FLOATS, TO_FLOATS)
def dot_four(builder, key, cell, last, head_dim, a, b, scale, to_a, to_b, kinds):
    """to_a[i] = scale · a · key i and to_b[i] = scale · b · key i for the four cells from `key` on, which are
    `cell` elements apart.

    Cells after number `last` are not read; their results are those of the last one. head_dim: a multiple of
    WIDTH. a, b: see `queries_at`. A product's additions have the same order for each place of a key.
    """
    keys = [builder.gep(key, [builder.mul(cell, _take_lesser(builder, i, last))]) for i in range(KEYS)]
    sums = [cgutils.alloca_once_value(builder, ir.Constant(_FLOATS, None)) for _ in range(2 * KEYS)]
    if kinds[4].dtype == types.uint16:
        _add_pair_products(builder, sums, keys, (a, b), head_dim)
    else:
        _add_products(builder, sums, keys, (a, b), head_dim, kinds[0].dtype)
    dots = _add_across(builder, [builder.load(total) for total in sums])
    factors = _splat_four(builder, scale)
    scales = read_scales(builder, keys, kinds[0], head_dim)
    if scales is not None:
        factors = builder.fmul(factors, scales)
    for to, first in ((to_a, 0), (to_b, KEYS)):
        part = _shuffle(builder, dots, dots, range(first, first + KEYS))
        write(builder, builder.fmul(part, factors), to)


def _add_products(
    builder: ir.IRBuilder,
    sums: Sequence[ir.Value],
    keys: Sequence[ir.Value],
    queries: Sequence[ir.Value],
    head_dim: ir.Value,
    stored: types.Type,
) -> None:
    """Adds the products of float32 queries and keys to `sums`: those of the first query, then the second."""
    with cgutils.for_range(builder, builder.udiv(head_dim, size(WIDTH))) as loop:
        at = builder.mul(loop.index, size(WIDTH))
        vectors = [read(builder, builder.gep(query, [at]), _FLOATS) for query in queries]
        for i, place in enumerate(keys):
            values = read_floats(builder, builder.gep(place, [at]), stored, WIDTH)
            for j, query in enumerate(vectors):
                total = sums[j * KEYS + i]
                builder.store(fma(builder, query, values, builder.load(total)), total)


def _add_pair_products(
    builder: ir.IRBuilder,
    sums: Sequence[ir.Value],
    keys: Sequence[ir.Value],
    queries: Sequence[ir.Value],
    head_dim: ir.Value,
) -> None:
    """As `_add_products`, for queries and keys of bfloat16: 32 elements at a time, and the last 16 if
    head_dim is an odd multiple of 16."""

    def add(at: ir.Value, words: int) -> None:
        vectors = [_words(builder, query, at, words) for query in queries]
        for i, place in enumerate(keys):
            pairs = _words(builder, place, at, words)
            for j, query in enumerate(vectors):
                bfloat16_dots.add_lane_products(builder, sums[j * KEYS + i], query, pairs)

    with cgutils.for_range(builder, builder.udiv(head_dim, size(2 * WIDTH))) as loop:
        add(builder.mul(loop.index, size(2 * WIDTH)), WIDTH)
    left = builder.and_(head_dim, size(WIDTH))
    with builder.if_then(builder.icmp_unsigned("!=", left, size(0))):
        add(builder.sub(head_dim, left), WIDTH // 2)


def _words(builder: ir.IRBuilder, place: ir.Value, at: ir.Value, count: int) -> ir.Value:
    """`count` words of bfloat16 from element `at` on, then zeros: WIDTH words."""
    words = read(builder, builder.gep(place, [at]), ir.VectorType(I32, count))
    return words if count == WIDTH else _shuffle(builder, words, ir.Constant(words.type, None), range(WIDTH))


def _splat_four(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    vector = ir.Constant(ir.VectorType(F32, KEYS), ir.Undefined)
    for i in range(KEYS):
        vector = builder.insert_element(vector, value, word(i))
    return vector


def _add_across(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """The sums across the lanes of each of 8 vectors: a vector of 8."""
    lanes = WIDTH
    while len(vectors) > 1:
        vectors = [_add_halves(builder, vectors[i], vectors[i + 1], lanes) for i in range(0, len(vectors), 2)]
        lanes //= 2
    while lanes > 1:
        vectors = [_add_halves(builder, vectors[0], None, lanes)]
        lanes //= 2
    return vectors[0]


def _add_halves(builder: ir.IRBuilder, one: ir.Value, other: ir.Value | None, lanes: int) -> ir.Value:
    """Vectors of sums that have `lanes` addends each, as one vector with half of the addends."""
    count = one.type.count * (1 if other is None else 2)
    first = [lane for lane in range(count) if lane % lanes < lanes // 2]
    second = [lane + lanes // 2 for lane in first]
    other = one if other is None else other
    return builder.fadd(_shuffle(builder, one, other, first), _shuffle(builder, one, other, second))


def _shuffle(builder: ir.IRBuilder, one: ir.Value, other: ir.Value, lanes: Iterable[int]) -> ir.Value:
    order = list(lanes)
    mask = ir.Constant(ir.VectorType(I32, len(order)), order)
    return builder.shuffle_vector(one, other, mask)


def _take_lesser(builder: ir.IRBuilder, i: int, last: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed("<", size(i), last), size(i), last)
