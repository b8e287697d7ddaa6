"""LLVM code for vectors of 16 lanes."""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .llvm import BF16, F16, F32, I8, I16, I32, narrow, read, size, widen, word, write
from .numba_tools import has_feature

LANES = 16

WORDS = ir.VectorType(I32, LANES)
SHORTS = ir.VectorType(I16, LANES)
FLOATS = ir.VectorType(F32, LANES)
HALVES = ir.VectorType(F16, LANES)
_ELEMENTS: dict[types.Type, ir.Type] = {
    types.uint16: I16,
    types.int16: I16,
    types.float32: F32,
    types.int8: I8,
}


def words(value: int) -> ir.Constant:
    return ir.Constant(WORDS, [value] * LANES)


def floats(value: float) -> ir.Constant:
    return ir.Constant(FLOATS, [value] * LANES)


def read_floats(builder: ir.IRBuilder, place: ir.Value, stored: types.Type, lanes: int = LANES) -> ir.Value:
    """The elements at an address as float32; `stored` as in `llvm`."""
    return widen(builder, read(builder, place, ir.VectorType(_ELEMENTS[stored], lanes)), stored)


def read_vectors(builder: ir.IRBuilder, place: ir.Value, kind: ir.VectorType, count: int) -> list[ir.Value]:
    """`count` vectors, FLOATS or WORDS, which follow each other at an address."""
    places = [builder.gep(place, [size(at * LANES)]) for at in range(count)]
    return [read(builder, each, kind) for each in places]


def zeros(builder: ir.IRBuilder, count: int) -> list[ir.Value]:
    """Variables of FLOATS that begin with zeros."""
    return [cgutils.alloca_once_value(builder, ir.Constant(FLOATS, None)) for _ in range(count)]


def write_floats(builder: ir.IRBuilder, value: ir.Value, place: ir.Value, stored: types.Type) -> None:
    """Write FLOATS as stored elements (see `narrow_floats`)."""
    write(builder, narrow_floats(builder, value, stored), place)


def narrow_floats(builder: ir.IRBuilder, value: ir.Value, stored: types.Type) -> ir.Value:
    """FLOATS as stored elements, rounded to nearest even; not int8.

    Processors with AVX512-BF16 write 0 in place of denormal bfloat16 numbers.
    """
    if stored != types.uint16 or not has_feature("avx512bf16"):
        return narrow(builder, value, stored)
    kind = ir.FunctionType(ir.VectorType(BF16, LANES), [FLOATS])
    convert = builder.module.declare_intrinsic("llvm.x86.avx512bf16.cvtneps2bf16.512", (), kind)
    return builder.bitcast(builder.call(convert, [value]), SHORTS)


def splat(builder: ir.IRBuilder, value: ir.Value, kind: ir.VectorType) -> ir.Value:
    """The vector of 16 lanes whose lanes all have this value."""
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, word(0))
    return builder.shuffle_vector(single, single, ir.Constant(WORDS, None))


def apply(builder: ir.IRBuilder, name: str, *values: ir.Value) -> ir.Value:
    """The result of LLVM's function for float32 vectors of these values' type, such as `llvm.rint`."""
    kind = values[0].type
    function = ir.FunctionType(kind, [kind] * len(values))
    return builder.call(
        cgutils.get_or_insert_function(builder.module, function, f"{name}.v{kind.count}f32"), values
    )


def fma(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """a * b + c, rounded once."""
    return apply(builder, "llvm.fma", a, b, c)


def reduce_lanes(builder: ir.IRBuilder, operation: str, value: ir.Value) -> ir.Value:
    """All lanes of WORDS combined by `operation` (add, umax …)."""
    name = f"llvm.vector.reduce.{operation}.v{LANES}i32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(I32, [WORDS]), name)
    return builder.call(function, [value])


def split(builder: ir.IRBuilder, value: ir.Value, lanes: int) -> list[ir.Value]:
    """WORDS as vectors of 8 or 16 lanes."""
    if lanes == LANES:
        return [value]
    kind = ir.VectorType(I32, lanes)
    indices = [list(range(start, start + lanes)) for start in range(0, LANES, lanes)]
    return [builder.shuffle_vector(value, value, ir.Constant(kind, each)) for each in indices]


def join(builder: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    """WORDS from one or two vectors."""
    if len(parts) == 1:
        return parts[0]
    return builder.shuffle_vector(*parts, ir.Constant(WORDS, list(range(LANES))))
