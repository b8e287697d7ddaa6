"""AVX512-BF16: products of pairs of bfloat16 values with float32 sums (`vdpbf16ps`), and rounding to pairs.

A 32-bit word holds a pair: two values that are neighbours along the summed dimension.
"""

from functools import cache

from llvmlite import ir

from .llvm import BF16
from .numba_tools import has_feature
from .vectors import FLOATS, LANES, WORDS, splat

_PAIRS = ir.VectorType(BF16, 2 * LANES)
_ROUND = ir.FunctionType(_PAIRS, [FLOATS, FLOATS])
_DOT = ir.FunctionType(FLOATS, [FLOATS, _PAIRS, _PAIRS])


@cache
def available() -> bool:
    """Whether the processor that numba compiles for has the instruction."""
    return has_feature("avx512bf16")


def round_words(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    """WORDS of all values of the first FLOATS, then all of the second, rounded to nearest even."""
    return builder.bitcast(_round(builder, first, second), WORDS)


def round_pairs(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    """WORDS of pairs: a value of the first FLOATS and one of the second, rounded to nearest even."""
    both = _round(builder, first, second)
    order = [lane + half * LANES for lane in range(LANES) for half in range(2)]
    mask = ir.Constant(ir.VectorType(ir.IntType(32), 2 * LANES), order)
    return builder.bitcast(builder.shuffle_vector(both, both, mask), WORDS)


def _round(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    convert = builder.module.declare_intrinsic("llvm.x86.avx512bf16.cvtne2ps2bf16.512", (), _ROUND)
    return builder.call(convert, [second, first])


def add_pair_products(
    builder: ir.IRBuilder, sums: list[ir.Value], pair: ir.Value, columns: list[ir.Value]
) -> None:
    """Add the products of the pair and the pairs in each of `columns` to the vectors at `sums`."""
    pairs = splat(builder, pair, WORDS)
    for total, column in zip(sums, columns, strict=True):
        add_lane_products(builder, total, pairs, column)


def add_lane_products(builder: ir.IRBuilder, total: ir.Value, one: ir.Value, other: ir.Value) -> None:
    """Add the products of the pairs in two vectors of WORDS, lane by lane, to the vector at `total`."""
    dot = builder.module.declare_intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", (), _DOT)
    pairs = [builder.bitcast(words, _PAIRS) for words in (one, other)]
    builder.store(builder.call(dot, [builder.load(total), *pairs]), total)
