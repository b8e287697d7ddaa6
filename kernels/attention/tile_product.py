# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Products of bfloat16 matrices with float32 sums, by AVX512-BF16's instruction `vdpbf16ps`.

The instruction multiplies pairs: a 32-bit word holds two values that are neighbours along the summed
dimension.
"""

from functools import cache

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common.numba_tools import has_feature
from .lanes import LANES, read, splat, write

ROWS = 8
"""Rows of C for each call: with two vectors a row, half of the 32 registers hold sums."""


class _BFloat16(ir.Type):  # type: ignore[misc]
    def _to_string(self) -> str:
        return "bfloat"


_SUMS = ir.VectorType(ir.FloatType(), LANES)
_WORDS = ir.VectorType(ir.IntType(32), LANES)
_PAIRS = ir.VectorType(_BFloat16(), 2 * LANES)
_DOT = ir.FunctionType(_SUMS, [_SUMS, _PAIRS, _PAIRS])


@cache
def available() -> bool:
    """Whether the processor that numba compiles for has the instruction."""
    return has_feature("avx512bf16")


@cache
def has_matrix_unit() -> bool:
    """Whether the processor also has AMX, which PyTorch's flash attention uses for bfloat16."""
    return bool(binding.get_host_cpu_features().get("amx-bf16"))


def _tile_product(vectors: int):
    """C[r, :] = sum over i < count of A[r, i] · B[i, :], for ROWS rows and vectors × LANES columns.

    a: words, `a_row` from one row to the next and `a_step` from one i to the next; b: words, `b_step` from
    one i to the next; c: float32, `c_row` from one row to the next, added to if `add`.
    """

    @intrinsic
    def multiply(typing, count, a, a_row, a_step, b, b_step, c, c_row, add):
        def generate(context, builder, signature, arguments):
            count, a, a_row, a_step, b, b_step, c, c_row, add = arguments
            places = _places(builder, c, c_row, vectors)
            sums = [cgutils.alloca_once_value(builder, ir.Constant(_SUMS, None)) for _ in places]
            with builder.if_then(add):
                for total, place in zip(sums, places, strict=True):
                    builder.store(read(builder, place, _SUMS), total)
            with cgutils.for_range(builder, count) as loop:
                column = builder.gep(b, [builder.mul(loop.index, b_step)])
                row = builder.gep(a, [builder.mul(loop.index, a_step)])
                _add_products(builder, sums, row, a_row, column, vectors)
            for total, place in zip(sums, places, strict=True):
                write(builder, builder.load(total), place)
            return context.get_dummy_value()

        words, sums = types.CPointer(types.uint32), types.CPointer(types.float32)
        size = types.int64
        return types.void(size, words, size, size, words, size, sums, size, types.boolean), generate

    return multiply


def _places(builder: ir.IRBuilder, c: ir.Value, c_row: ir.Value, vectors: int) -> list[ir.Value]:
    """The addresses of the vectors of the result, row by row."""
    rows = [builder.gep(c, [builder.mul(c_row, _index(row))]) for row in range(ROWS)]
    return [builder.gep(row, [_index(vector * LANES)]) for row in rows for vector in range(vectors)]


def _add_products(
    builder: ir.IRBuilder, sums: list[ir.Value], a: ir.Value, a_row: ir.Value, b: ir.Value, vectors: int
) -> None:
    """Add the products of one column of A and one row of B."""
    columns = [read(builder, builder.gep(b, [_index(vector * LANES)]), _WORDS) for vector in range(vectors)]
    for row in range(ROWS):
        word = builder.load(builder.gep(a, [builder.mul(a_row, _index(row))]))
        add_pair_products(builder, sums[row * vectors : (row + 1) * vectors], word, columns)


def add_pair_products(
    builder: ir.IRBuilder, sums: list[ir.Value], word: ir.Value, columns: list[ir.Value]
) -> None:
    """Add the products of the pair in `word` and the pairs in each of `columns` to the vectors at `sums`."""
    dot = builder.module.declare_intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", (), _DOT)
    pairs = builder.bitcast(splat(builder, word, _WORDS), _PAIRS)
    for total, column in zip(sums, columns, strict=True):
        column = builder.bitcast(column, _PAIRS)
        builder.store(builder.call(dot, [builder.load(total), pairs, column]), total)


multiply_narrow = _tile_product(1)
multiply_wide = _tile_product(2)


def _index(value: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), value)
