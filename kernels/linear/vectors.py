# mypy: disable-error-code="no-untyped-call"
"""LLVM vectors of 16 lanes, in which numba intrinsics are written."""

from llvmlite import ir
from numba import types
from numba.core import cgutils

LANES = 16

I32 = ir.IntType(32)
WORDS = ir.VectorType(I32, LANES)
SHORTS = ir.VectorType(ir.IntType(16), LANES)
FLOATS = ir.VectorType(ir.FloatType(), LANES)
HALVES = ir.VectorType(ir.HalfType(), LANES)


def size(value: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), value)


def words(value: int) -> ir.Constant:
    return ir.Constant(WORDS, [value] * LANES)


def read(builder: ir.IRBuilder, place: ir.Value, kind: ir.Type) -> ir.Value:
    value = builder.load(builder.bitcast(place, kind.as_pointer()))
    value.align = 1
    return value


def write(builder: ir.IRBuilder, value: ir.Value, place: ir.Value) -> None:
    builder.store(value, builder.bitcast(place, value.type.as_pointer())).align = 1


def read_floats(builder: ir.IRBuilder, place: ir.Value, stored: types.Type) -> ir.Value:
    """FLOATS from 16 elements; `stored` as in numba_tools."""
    if stored == types.float32:
        return read(builder, place, FLOATS)
    if stored == types.int16:
        return builder.fpext(read(builder, place, HALVES), FLOATS)
    assert stored == types.uint16
    wide = builder.zext(read(builder, place, SHORTS), WORDS)
    return builder.bitcast(builder.shl(wide, words(16)), FLOATS)


def write_floats(builder: ir.IRBuilder, value: ir.Value, place: ir.Value, stored: types.Type) -> None:
    """Writes FLOATS as 16 elements, rounded to nearest even."""
    if stored == types.float32:
        return write(builder, value, place)
    if stored == types.int16:
        return write(builder, builder.fptrunc(value, HALVES), place)
    assert stored == types.uint16
    bits = builder.bitcast(value, WORDS)
    upper = builder.lshr(bits, words(16))
    nearest = builder.add(bits, builder.add(builder.and_(upper, words(1)), words(0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", value, value)
    rounded = builder.select(is_nan, builder.or_(upper, words(0x40)), builder.lshr(nearest, words(16)))
    return write(builder, builder.trunc(rounded, SHORTS), place)


def splat(builder: ir.IRBuilder, value: ir.Value, kind: ir.VectorType) -> ir.Value:
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(single, single, ir.Constant(WORDS, None))


def fma(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """a * b + c, rounded once."""
    kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    return builder.call(function, [a, b, c])


def reduced(builder: ir.IRBuilder, operation: str, value: ir.Value) -> ir.Value:
    """All lanes of WORDS combined by `operation` (add, umax …)."""
    name = f"llvm.vector.reduce.{operation}.v{LANES}i32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(I32, [WORDS]), name)
    return builder.call(function, [value])


def prefetch(builder: ir.IRBuilder, place: ir.Value) -> None:
    kind = ir.FunctionType(ir.VoidType(), [place.type, I32, I32, I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", (place.type,), kind)
    builder.call(function, [place, *(ir.Constant(I32, value) for value in (0, 3, 1))])


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
