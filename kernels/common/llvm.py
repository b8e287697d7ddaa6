"""LLVM's types and constants, and code for single values and for vectors of any length.

`stored` is numba's type of a stored element: uint16 for bfloat16, int16 for float16, float32, or int8.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba import types
from numba.core import cgutils

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()


class _BFloat16(ir.Type):
    def _to_string(self) -> str:
        return "bfloat"


BF16 = _BFloat16()

FIRST_LEVEL, SECOND_LEVEL = 3, 2
"""the caches that a line can be prefetched into"""


def word(value: int) -> ir.Constant:
    return ir.Constant(I32, value)


def size(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def read(builder: ir.IRBuilder, place: ir.Value, kind: ir.Type) -> ir.Value:
    """The value of this type at an address with any alignment."""
    value = builder.load(builder.bitcast(place, kind.as_pointer()))
    value.align = 1
    return value


def write(builder: ir.IRBuilder, value: ir.Value, place: ir.Value) -> None:
    builder.store(value, builder.bitcast(place, value.type.as_pointer())).align = 1


def prefetch_line(builder: ir.IRBuilder, place: ir.Value, cache: int = FIRST_LEVEL) -> None:
    """Prefetch the cache line of an address, which may lie outside of the array."""
    address = builder.bitcast(place, I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [address.type, I32, I32, I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", (address.type,), kind)
    builder.call(function, [address, word(0), word(cache), word(1)])


def call_outlined(
    builder: ir.IRBuilder, name: str, emit: Callable[..., None], arguments: Sequence[ir.Value]
) -> None:
    """Call a function of the module, whose code `emit(builder, *arguments)` emits if it isn't there yet.

    It is never inlined: LLVM then keeps a loop's values in registers, whatever the caller keeps there. The
    name alone identifies the code, so it must tell all that `emit` depends on.
    """
    kind = ir.FunctionType(ir.VoidType(), [each.type for each in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    if function.is_declaration:
        function.linkage = "internal"
        function.attributes.add("noinline")
        inside = ir.IRBuilder(function.append_basic_block())
        emit(inside, *function.args)
        inside.ret_void()
    builder.call(function, arguments)


def widen(builder: ir.IRBuilder, value: ir.Value, stored: types.Type) -> ir.Value:
    """Stored elements as float32."""
    if stored == types.float32:
        return value
    if stored == types.int8:
        return builder.sitofp(value, _like(value, F32))
    if stored == types.int16:
        return builder.fpext(builder.bitcast(value, _like(value, F16)), _like(value, F32))
    assert stored == types.uint16
    upper = builder.shl(builder.zext(value, _like(value, I32)), _constant(value, 16))
    return builder.bitcast(upper, _like(value, F32))


def narrow(builder: ir.IRBuilder, value: ir.Value, stored: types.Type) -> ir.Value:
    """float32 as stored elements, rounded to nearest even. int8: single values within its range."""
    if stored == types.float32:
        return value
    if stored == types.int8:
        kind = ir.FunctionType(F32, [F32])
        nearest = builder.module.declare_intrinsic("llvm.rint", (F32,), kind)
        return builder.fptosi(builder.call(nearest, [value]), I8)
    if stored == types.int16:
        return builder.bitcast(builder.fptrunc(value, _like(value, F16)), _like(value, I16))
    assert stored == types.uint16
    upper = builder.lshr(builder.bitcast(value, _like(value, I32)), _constant(value, 16))
    nearest = builder.lshr(_nearest_bfloat16(builder, value), _constant(value, 16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    quiet = builder.or_(upper, _constant(value, 0x40))
    return builder.trunc(builder.select(is_nan, quiet, nearest), _like(value, I16))


def _nearest_bfloat16(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Words whose upper halves are float32 rounded to nearest even. NaN may become infinite."""
    bits = builder.bitcast(value, _like(value, I32))
    odd = builder.and_(builder.lshr(bits, _constant(value, 16)), _constant(value, 1))
    return builder.add(bits, builder.add(odd, _constant(value, 0x7FFF)))


def _like(value: ir.Value, element: ir.Type) -> ir.Type:
    """The type of as many elements as the value has."""
    return ir.VectorType(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def _constant(value: ir.Value, number: int) -> ir.Constant:
    kind = _like(value, I32)
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)
