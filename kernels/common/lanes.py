"""Vectors of 16 float32 for numba kernels whose loops LLVM would not turn into vector instructions."""

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from .bfloat16_dots import round_pairs
from .jit import compiled_fast
from .llvm import F32, I16, I32, read, widen, word, write
from .numba_tools import has_feature, load, store
from .vectors import (
    FLOATS,
    LANES,
    WORDS,
    apply,
    floats,
    fma,
    narrow_floats,
    read_floats,
    splat,
    words,
    write_floats,
)

_LOG2E = 1.4426950408889634
_MIN_EXPONENT = -127.0
"""2 ** x counts as 0 from here down, if the processor can't scale by a power of two."""
_POWER_OF_TWO = (1.8671307e-3, 9.017029e-3, 5.5799913e-2, 2.4016444e-1, 6.931513e-1, 1.0)
"""Coefficients of a polynomial for 2 ** x, 0 <= x < 1, the highest power first. Its relative error is at most
2e-7, and its value at 0 is exactly 1."""


class _Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: object, kind: types.Type) -> None:
        super().__init__(manager, kind, FLOATS)


@intrinsic
def load_lanes(typing, start, index):
    """Elements index … index + 15 of a float32 pointer."""

    def generate(context, builder, signature, arguments):
        return read(builder, builder.gep(arguments[0], [arguments[1]]), FLOATS)

    return lanes(start, types.int64), generate


@intrinsic
def store_lanes(typing, start, index, value):
    def generate(context, builder, signature, arguments):
        write(builder, arguments[2], builder.gep(arguments[0], [arguments[1]]))
        return context.get_dummy_value()

    return types.void(start, types.int64, lanes), generate


@intrinsic
def max_of_lanes(typing, one, other):
    """The maximum of each lane."""

    def generate(context, builder, signature, arguments):
        above = builder.fcmp_ordered(">", arguments[0], arguments[1])
        return builder.select(above, arguments[0], arguments[1])

    return lanes(lanes, lanes), generate


@intrinsic
def max_lane(typing, one):
    """The largest lane. If a lane is NaN: NaN, or the largest of the others."""

    def generate(context, builder, signature, arguments):
        def top(one: ir.Value, other: ir.Value) -> ir.Value:
            return builder.select(builder.fcmp_ordered(">", one, other), one, other)

        return _combine(builder, arguments[0], top)

    return types.float32(lanes), generate


@intrinsic
def add_lanes(typing, one, other):
    def generate(context, builder, signature, arguments):
        return builder.fadd(*arguments)

    return lanes(lanes, lanes), generate


@intrinsic
def subtract_lanes(typing, one, other):
    def generate(context, builder, signature, arguments):
        return builder.fsub(*arguments)

    return lanes(lanes, lanes), generate


@intrinsic
def multiply_lanes(typing, one, other):
    def generate(context, builder, signature, arguments):
        return builder.fmul(*arguments)

    return lanes(lanes, lanes), generate


@intrinsic
def scale_lanes(typing, one, factor):
    """Each lane times a float32 number."""

    def generate(context, builder, signature, arguments):
        return builder.fmul(arguments[0], splat(builder, arguments[1], FLOATS))

    return lanes(lanes, types.float32), generate


@intrinsic
def exp_of_difference(typing, one, other, scale):
    """exp((one - other) * scale) with an error of about 2e-7, for results up to 1; NaN stays NaN."""

    def generate(context, builder, signature, arguments):
        one, other, scale = arguments
        log2e_scale = builder.fmul(scale, ir.Constant(F32, _LOG2E))
        exponent = builder.fmul(builder.fsub(one, other), splat(builder, log2e_scale, FLOATS))
        return _power_of_two(builder, exponent)

    return lanes(lanes, lanes, types.float32), generate


@intrinsic
def load_wide(typing, start, index):
    """Elements index … index + 15 of a pointer to stored elements (see `llvm`), as float32."""

    def generate(context, builder, signature, arguments):
        return read_floats(builder, builder.gep(arguments[0], [arguments[1]]), start.dtype)

    return lanes(start, types.int64), generate


@intrinsic
def store_narrow(typing, start, index, value):
    """Write elements index … index + 15, rounded to nearest even."""

    def generate(context, builder, signature, arguments):
        write_floats(builder, arguments[2], builder.gep(arguments[0], [arguments[1]]), start.dtype)
        return context.get_dummy_value()

    return types.void(start, types.int64, lanes), generate


@intrinsic
def round_lanes(typing, value, kind):
    """The lanes after a round trip through the storage type of `kind`."""

    def generate(context, builder, signature, arguments):
        return widen(builder, narrow_floats(builder, arguments[0], kind), kind)

    return lanes(lanes, kind), generate


@intrinsic
def fill_lanes(typing, number):
    """A float32 number in all lanes."""

    def generate(context, builder, signature, arguments):
        return splat(builder, arguments[0], FLOATS)

    return lanes(types.float32), generate


@intrinsic
def multiply_add(typing, a, b, c):
    """a * b + c, rounded once."""

    def generate(context, builder, signature, arguments):
        return fma(builder, *arguments)

    return lanes(lanes, lanes, lanes), generate


@intrinsic
def sum_lanes(typing, one):
    """The sum of all lanes as float32."""

    def generate(context, builder, signature, arguments):
        return _combine(builder, arguments[0], builder.fadd)

    return types.float32(lanes), generate


@intrinsic
def silu(typing, value):
    """x / (1 + exp(-x))"""

    def generate(context, builder, signature, arguments):
        (x,) = arguments
        one = floats(1.0)
        tail = _power_of_two(builder, builder.fmul(apply(builder, "llvm.fabs", x), floats(-_LOG2E)))
        top = builder.select(builder.fcmp_ordered(">=", x, floats(0.0)), one, tail)
        return builder.fmul(x, builder.fdiv(top, builder.fadd(one, tail)))

    return lanes(lanes), generate


@intrinsic
def store_pairs(typing, start, index, low, high):
    """Write the two values of each lane as bfloat16 to words index … index + 15 of a uint32 pointer."""

    def generate(context, builder, signature, arguments):
        start, index, low, high = arguments
        write(builder, round_pairs(builder, low, high), builder.gep(start, [index]))
        return context.get_dummy_value()

    return types.void(start, types.int64, lanes, lanes), generate


@intrinsic
def store_halves_as_pairs(typing, start, index, one, other):
    """Writes 16 pairs of bfloat16 to words index … index + 15 of a uint32 pointer. The first eight are lanes
    i and i + 8 of `one`, the others the same of `other`."""

    def generate(context, builder, signature, arguments):
        start, index, one, other = arguments
        half = LANES // 2
        first = [lane + lane // half * half for lane in range(LANES)]
        orders = (ir.Constant(WORDS, [lane + skipped for lane in first]) for skipped in (0, half))
        low, high = (builder.shuffle_vector(one, other, order) for order in orders)
        write(builder, round_pairs(builder, low, high), builder.gep(start, [index]))
        return context.get_dummy_value()

    return types.void(start, types.int64, lanes, lanes), generate


@intrinsic
def swap_halves(typing, value):
    """The vector with its two halves exchanged."""

    def generate(context, builder, signature, arguments):
        order = [(lane + LANES // 2) % LANES for lane in range(LANES)]
        return builder.shuffle_vector(arguments[0], arguments[0], ir.Constant(WORDS, order))

    return lanes(lanes), generate


@intrinsic
def fill_halves(typing, one, other):
    """The vector with the float32 number `one` in each lane of its first half and `other` in the second."""

    def generate(context, builder, signature, arguments):
        one, other = (splat(builder, number, FLOATS) for number in arguments)
        order = [lane + lane // (LANES // 2) * LANES for lane in range(LANES)]
        return builder.shuffle_vector(one, other, ir.Constant(WORDS, order))

    return lanes(types.float32, types.float32), generate


def _combine(
    builder: ir.IRBuilder, value: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """All lanes combined to one number."""
    distance = LANES
    while distance > 1:
        distance //= 2
        order = ir.Constant(WORDS, [(lane + distance) % LANES for lane in range(LANES)])
        value = combine(value, builder.shuffle_vector(value, value, order))
    return builder.extract_element(value, word(0))


def _power_of_two(builder: ir.IRBuilder, exponent: ir.Value) -> ir.Value:
    """2 to the power of each lane of `exponent`, which is at most 0. Results below 2 ** -126 may be 0."""
    if has_feature("avx512dq"):
        power = _power_of_part(builder, _above_whole(builder, exponent))
        return _times_power_of_two(builder, power, exponent)
    is_within = builder.fcmp_ordered(">=", exponent, floats(_MIN_EXPONENT))
    clamped = builder.select(is_within, exponent, floats(_MIN_EXPONENT))
    whole = apply(builder, "llvm.floor", clamped)
    power = _power_of_part(builder, builder.fsub(clamped, whole))
    biased = builder.add(builder.fptosi(whole, WORDS), words(127))
    result = builder.fmul(power, builder.bitcast(builder.shl(biased, words(23)), FLOATS))
    is_nan = builder.fcmp_unordered("uno", exponent, exponent)
    return builder.select(is_nan, exponent, result)


def _power_of_part(builder: ir.IRBuilder, part: ir.Value) -> ir.Value:
    """2 ** part, for 0 <= part < 1"""
    power = floats(_POWER_OF_TWO[0])
    for factor in _POWER_OF_TWO[1:]:
        power = fma(builder, power, part, floats(factor))
    return power


def _above_whole(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """value - floor(value); 0 for an infinite value."""
    kind = ir.FunctionType(FLOATS, [FLOATS, I32, FLOATS, I16, I32])
    reduce = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.mask.reduce.ps.512")
    to_floor, all_lanes, rounding = word(1), ir.Constant(I16, -1), word(4)
    return builder.call(reduce, [value, to_floor, value, all_lanes, rounding])


def _times_power_of_two(builder: ir.IRBuilder, value: ir.Value, exponent: ir.Value) -> ir.Value:
    """value * 2 ** floor(exponent)"""
    kind = ir.FunctionType(FLOATS, [FLOATS] * 3 + [I16, I32])
    scale = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.mask.scalef.ps.512")
    all_lanes, rounding = ir.Constant(I16, -1), word(4)
    return builder.call(scale, [value, exponent, value, all_lanes, rounding])


@compiled_fast
def store_scaled(values, factor, out, count):
    """out[i] = values[i] * factor, rounded as by `narrow_floats`, for `count` float32 values."""
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):
        store_narrow(out, i, scale_lanes(load_lanes(values, i), factor))
    for i in range(whole, count):
        store(out, i, values[i] * factor)


@compiled_fast
def sum_squares(values, count):
    """The sum of the squares of `count` stored elements, in float32."""
    partial_sums = fill_lanes(np.float32(0))
    vectors_end = count - count % LANES
    for i in range(0, vectors_end, LANES):
        value = load_wide(values, i)
        partial_sums = multiply_add(value, value, partial_sums)
    squares = sum_lanes(partial_sums)
    for i in range(vectors_end, count):
        squares += load(values, i) * load(values, i)
    return squares
