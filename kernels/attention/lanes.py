# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Vectors of 16 float32 for numba kernels whose loops LLVM would not turn into vector instructions."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16

_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_WORDS = ir.VectorType(ir.IntType(32), LANES)
_LOG2E = 1.4426950408889634
_LOWEST = -150.0
"""e ** x is 0 in float32 below this"""
_POWER_OF_TWO = (1.5353362e-4, 1.3398874e-3, 9.6184374e-3, 5.5503325e-2, 2.4022648e-1, 6.931472e-1, 1.0)
"""2 ** x for |x| <= 0.5, highest power first"""


class _Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind) -> None:
        super().__init__(manager, kind, _FLOATS)


@intrinsic
def load_lanes(typing, start, index):
    """Elements index … index + 15 of a float32 pointer."""

    def generate(context, builder, signature, arguments):
        return read(builder, builder.gep(arguments[0], [arguments[1]]), _FLOATS)

    return lanes(start, types.int64), generate


@intrinsic
def store_lanes(typing, start, index, value):
    def generate(context, builder, signature, arguments):
        write(builder, arguments[2], builder.gep(arguments[0], [arguments[1]]))
        return context.get_dummy_value()

    return types.void(start, types.int64, lanes), generate


@intrinsic
def larger(typing, one, other):
    """The maximum of each lane."""

    def generate(context, builder, signature, arguments):
        above = builder.fcmp_ordered(">", arguments[0], arguments[1])
        return builder.select(above, arguments[0], arguments[1])

    return lanes(lanes, lanes), generate


@intrinsic
def largest_of(typing, one):
    """The largest lane. NaN if some lane is, or the largest of the others."""

    def generate(context, builder, signature, arguments):
        (top,), distance = arguments, LANES
        while distance > 1:
            distance //= 2
            mask = ir.Constant(_WORDS, [(lane + distance) % LANES for lane in range(LANES)])
            turned = builder.shuffle_vector(top, top, mask)
            top = builder.select(builder.fcmp_ordered(">", top, turned), top, turned)
        return builder.extract_element(top, ir.Constant(ir.IntType(32), 0))

    return types.float32(lanes), generate


@intrinsic
def plus(typing, one, other):
    def generate(context, builder, signature, arguments):
        return builder.fadd(*arguments)

    return lanes(lanes, lanes), generate


@intrinsic
def times(typing, one, other):
    def generate(context, builder, signature, arguments):
        return builder.fmul(*arguments)

    return lanes(lanes, lanes), generate


@intrinsic
def multiplied(typing, one, factor):
    """Each lane times a float32 number."""

    def generate(context, builder, signature, arguments):
        return builder.fmul(arguments[0], splat(builder, arguments[1], _FLOATS))

    return lanes(lanes, types.float32), generate


@intrinsic
def exp_of_difference(typing, one, other, scale):
    """exp((one - other) * scale), at most 1, with the precision of `numba_tools.exp`; NaN stays NaN."""

    def generate(context, builder, signature, arguments):
        one, other, scale = arguments
        scaled = builder.fmul(builder.fsub(one, other), splat(builder, scale, _FLOATS))
        below = builder.fcmp_ordered("<", scaled, _floats(_LOWEST))
        exponent = builder.fmul(builder.select(below, _floats(_LOWEST), scaled), _floats(_LOG2E))
        whole = _intrinsic(builder, "llvm.rint", exponent)
        part = builder.fsub(exponent, whole)
        power = _floats(_POWER_OF_TWO[0])
        for factor in _POWER_OF_TWO[1:]:
            power = _intrinsic(builder, "llvm.fma", power, part, _floats(factor))
        return _times_power_of_two(builder, power, whole)

    return lanes(lanes, lanes, types.float32), generate


@intrinsic
def store_pairs(typing, start, index, low, high):
    """Writes words index … index + 15 of a uint32 pointer: the two values of each lane as bfloat16. Both must
    be finite."""

    def generate(context, builder, signature, arguments):
        start, index, low, high = arguments
        upper = builder.and_(_nearest(builder, high), _words(0xFFFF0000))
        word = builder.or_(builder.lshr(_nearest(builder, low), _words(16)), upper)
        write(builder, word, builder.gep(start, [index]))
        return context.get_dummy_value()

    return types.void(start, types.int64, lanes, lanes), generate


def read(builder: ir.IRBuilder, place: ir.Value, kind: ir.Type) -> ir.Value:
    """The vector at an address that is aligned to elements, not to vectors."""
    value = builder.load(builder.bitcast(place, kind.as_pointer()))
    value.align = 4
    return value


def write(builder: ir.IRBuilder, value: ir.Value, place: ir.Value) -> None:
    stored = builder.store(value, builder.bitcast(place, value.type.as_pointer()))
    stored.align = 4


def splat(builder: ir.IRBuilder, value: ir.Value, kind: ir.VectorType) -> ir.Value:
    zero = ir.Constant(ir.IntType(32), 0)
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, zero)
    return builder.shuffle_vector(single, single, ir.Constant(_WORDS, None))


def _nearest(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Bits whose upper halves are the values rounded to nearest even."""
    bits = builder.bitcast(value, _WORDS)
    odd = builder.and_(builder.lshr(bits, _words(16)), _words(1))
    return builder.add(bits, builder.add(odd, _words(0x7FFF)))


def _intrinsic(builder: ir.IRBuilder, name: str, *arguments: ir.Value) -> ir.Value:
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * len(arguments))
    function = cgutils.get_or_insert_function(builder.module, kind, f"{name}.v{LANES}f32")
    return builder.call(function, arguments)


def _times_power_of_two(builder: ir.IRBuilder, value: ir.Value, exponent: ir.Value) -> ir.Value:
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3 + [ir.IntType(16), ir.IntType(32)])
    scale = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.mask.scalef.ps.512")
    all_lanes, rounding = ir.Constant(ir.IntType(16), -1), ir.Constant(ir.IntType(32), 4)
    return builder.call(scale, [value, exponent, value, all_lanes, rounding])


def _floats(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [value] * LANES)


def _words(value: int) -> ir.Constant:
    return ir.Constant(_WORDS, [value] * LANES)
