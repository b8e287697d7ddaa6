# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Dot products of two queries with four keys at a time, for numba kernels.

LLVM would vectorise one key at a time, and then spend as long on the sums across lanes as on the products.
"""

from collections.abc import Iterable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common.llvm import F32, I32, read, size, write
from ..common.numba_tools import has_feature
from ..common.vectors import fma, read_floats
from ..pages.cells_cpu import scales_of

WIDTH = 16 if has_feature("avx512f") else 8
"""lanes of a vector register"""

KEYS = 4

_FLOATS = ir.VectorType(F32, WIDTH)


@intrinsic
def dot_four(typing, key, cell, last, head_dim, a, b, to_a, to_b):
    """to_a[i] = a · key i and to_b[i] = b · key i for the four cells from `key`, `cell` elements apart.

    Cells after number `last` are not read; their results are those of the last one. head_dim: a multiple of
    WIDTH. The order of the additions of a product is the same for each place of a key.
    """

    def generate(context, builder, signature, arguments):
        key, cell, last, head_dim, a, b, to_a, to_b = arguments
        keys = [builder.gep(key, [builder.mul(cell, _least(builder, i, last))]) for i in range(KEYS)]
        sums = [cgutils.alloca_once_value(builder, ir.Constant(_FLOATS, None)) for _ in range(2 * KEYS)]
        with cgutils.for_range(builder, builder.udiv(head_dim, size(WIDTH))) as loop:
            at = builder.mul(loop.index, size(WIDTH))
            queries = [read(builder, builder.gep(query, [at]), _FLOATS) for query in (a, b)]
            for i, place in enumerate(keys):
                values = read_floats(builder, builder.gep(place, [at]), signature.args[0].dtype, WIDTH)
                for j, query in enumerate(queries):
                    total = sums[j * KEYS + i]
                    builder.store(fma(builder, query, values, builder.load(total)), total)
        dots = _across(builder, [builder.load(total) for total in sums])
        scales = scales_of(builder, keys, signature.args[0], head_dim)
        for to, first in ((to_a, 0), (to_b, KEYS)):
            part = _shuffled(builder, dots, dots, range(first, first + KEYS))
            if scales is not None:
                part = builder.fmul(part, scales)
            write(builder, part, to)
        return context.get_dummy_value()

    floats, i64 = types.CPointer(types.float32), types.int64
    return types.void(key, i64, i64, i64, floats, floats, floats, floats), generate


def _across(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """The sums across the lanes of each of 8 vectors: a vector of 8."""
    lanes = WIDTH
    while len(vectors) > 1:
        vectors = [_halved(builder, vectors[i], vectors[i + 1], lanes) for i in range(0, len(vectors), 2)]
        lanes //= 2
    while lanes > 1:
        vectors = [_halved(builder, vectors[0], None, lanes)]
        lanes //= 2
    return vectors[0]


def _halved(builder: ir.IRBuilder, one: ir.Value, other: ir.Value | None, lanes: int) -> ir.Value:
    """Vectors of sums that have `lanes` addends each, as one vector with half of the addends."""
    count = one.type.count * (1 if other is None else 2)
    first = [lane for lane in range(count) if lane % lanes < lanes // 2]
    second = [lane + lanes // 2 for lane in first]
    other = one if other is None else other
    return builder.fadd(_shuffled(builder, one, other, first), _shuffled(builder, one, other, second))


def _shuffled(builder: ir.IRBuilder, one: ir.Value, other: ir.Value, lanes: Iterable[int]) -> ir.Value:
    order = list(lanes)
    mask = ir.Constant(ir.VectorType(I32, len(order)), order)
    return builder.shuffle_vector(one, other, mask)


def _least(builder: ir.IRBuilder, i: int, last: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed("<", size(i), last), size(i), last)
