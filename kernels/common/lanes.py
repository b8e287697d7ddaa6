"""Vectors of 16 float32 for numba kernels whose loops LLVM would not turn into vector instructions."""

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

from .bfloat16_dots import round_pairs
from .emits import ANY, FLOAT, INT, VOID, emits
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

GELU_SCALE, GELU_CUBIC = 0.7978845608028654, 0.044715
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
"""Coefficients of (tanh(x) / x - 1) / x² in powers of x², the highest first, for small x (Cephes)"""
_TANH_SMALL = 0.625


class _Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: object, kind: types.Type) -> None:
        super().__init__(manager, kind, FLOATS)


@emits(lanes, ANY, INT)
def load_lanes(builder, start, index):
    """Elements index … index + 15 of a float32 pointer."""
    return read(builder, builder.gep(start, [index]), FLOATS)


@emits(VOID, ANY, INT, lanes)
def store_lanes(builder, start, index, value):
    write(builder, value, builder.gep(start, [index]))


@emits(lanes, ANY, INT)
def load_wide(builder, start, index, kinds):
    """Elements index … index + 15 of a pointer to stored elements (see `llvm`), as float32."""
    return read_floats(builder, builder.gep(start, [index]), kinds[0].dtype)


@emits(VOID, ANY, INT, lanes)
def store_narrow(builder, start, index, value, kinds):
    """Write elements index … index + 15, rounded to nearest even."""
    write_floats(builder, value, builder.gep(start, [index]), kinds[0].dtype)


@emits(lanes, lanes, ANY)
def round_lanes(builder, value, kind, kinds):
    """The lanes after a round trip through the storage type of `kind`."""
    return widen(builder, narrow_floats(builder, value, kinds[1]), kinds[1])


@emits(lanes, FLOAT)
def fill_lanes(builder, number):
    """A float32 number in all lanes."""
    return splat(builder, number, FLOATS)


@emits(lanes, lanes, lanes)
def add_lanes(builder, one, other):
    return builder.fadd(one, other)


@emits(lanes, lanes, lanes)
def subtract_lanes(builder, one, other):
    return builder.fsub(one, other)


@emits(lanes, lanes, lanes)
def multiply_lanes(builder, one, other):
    return builder.fmul(one, other)


@emits(lanes, lanes, FLOAT)
def scale_lanes(builder, one, factor):
    """Each lane times a float32 number."""
    return builder.fmul(one, splat(builder, factor, FLOATS))


@emits(lanes, lanes, lanes, lanes)
def multiply_add(builder, a, b, c):
    """a * b + c, rounded once."""
    return fma(builder, a, b, c)


@emits(lanes, lanes, lanes)
def max_of_lanes(builder, one, other):
    """The maximum of each lane."""
    return _greater(builder, one, other)


@emits(FLOAT, lanes)
def max_lane(builder, one):
    """The largest lane. If a lane is NaN: NaN, or the largest of the others."""
    return _combine(builder, one, _greater)


@emits(FLOAT, lanes)
def sum_lanes(builder, one):
    """The sum of all lanes as float32."""
    return _combine(builder, one, ir.IRBuilder.fadd)


@emits(lanes, lanes, lanes, FLOAT)
def exp_of_difference(builder, one, other, scale):
    """exp((one - other) * scale) with an error of about 2e-7, for results up to 1; NaN stays NaN."""
    log2e_scale = builder.fmul(scale, ir.Constant(F32, _LOG2E))
    exponent = builder.fmul(builder.fsub(one, other), splat(builder, log2e_scale, FLOATS))
    return _power_of_two(builder, exponent)


@emits(lanes, lanes)
def silu(builder, x):
    """x / (1 + exp(-x))"""
    return builder.fmul(x, _sigmoid(builder, x))


@emits(lanes, lanes)
def gelu(builder, x):
    """x / (1 + exp(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x³), which is x (1 + tanh(u)) / 2"""
    cubic = fma(builder, builder.fmul(x, x), floats(GELU_CUBIC), floats(1.0))
    u = builder.fmul(builder.fmul(x, floats(GELU_SCALE)), cubic)
    return builder.fmul(x, _sigmoid(builder, builder.fmul(u, floats(2.0))))


@emits(lanes, lanes)
def tanh(builder, x):
    """The hyperbolic tangent with an error of about 2e-7 of its value."""
    size = apply(builder, "llvm.fabs", x)
    square = builder.fmul(x, x)
    series = floats(_TANH[0])
    for factor in _TANH[1:]:
        series = fma(builder, series, square, floats(factor))
    small = fma(builder, builder.fmul(series, square), x, x)
    tail = _power_of_two(builder, builder.fmul(size, floats(-2 * _LOG2E)))
    one = floats(1.0)
    large = builder.fdiv(builder.fsub(one, tail), builder.fadd(one, tail))
    signed = apply(builder, "llvm.copysign", large, x)
    return builder.select(builder.fcmp_ordered("<", size, floats(_TANH_SMALL)), small, signed)


@emits(VOID, ANY, INT, lanes, lanes)
def store_halves_as_pairs(builder, start, index, one, other):
    """Writes 16 pairs of bfloat16 to words index … index + 15 of a uint32 pointer. The first eight are lanes
    i and i + 8 of `one`, the others the same of `other`."""
    half = LANES // 2
    first = [lane + lane // half * half for lane in range(LANES)]
    orders = (ir.Constant(WORDS, [lane + skipped for lane in first]) for skipped in (0, half))
    low, high = (builder.shuffle_vector(one, other, order) for order in orders)
    write(builder, round_pairs(builder, low, high), builder.gep(start, [index]))


@emits(lanes, lanes)
def swap_halves(builder, value):
    """The vector with its two halves exchanged."""
    order = [(lane + LANES // 2) % LANES for lane in range(LANES)]
    return builder.shuffle_vector(value, value, ir.Constant(WORDS, order))


@emits(lanes, FLOAT, FLOAT)
def fill_halves(builder, one, other):
    """The vector with the float32 number `one` in each lane of its first half and `other` in the second."""
    order = [lane + lane // (LANES // 2) * LANES for lane in range(LANES)]
    halves = (splat(builder, number, FLOATS) for number in (one, other))
    return builder.shuffle_vector(*halves, ir.Constant(WORDS, order))


def _sigmoid(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    one = floats(1.0)
    tail = _power_of_two(builder, builder.fmul(apply(builder, "llvm.fabs", x), floats(-_LOG2E)))
    top = builder.select(builder.fcmp_ordered(">=", x, floats(0.0)), one, tail)
    return builder.fdiv(top, builder.fadd(one, tail))


def _greater(builder: ir.IRBuilder, one: ir.Value, other: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", one, other), one, other)


def _combine(
    builder: ir.IRBuilder, value: ir.Value, combine: Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """All lanes combined to one number."""
    distance = LANES
    while distance > 1:
        distance //= 2
        order = ir.Constant(WORDS, [(lane + distance) % LANES for lane in range(LANES)])
        value = combine(builder, value, builder.shuffle_vector(value, value, order))
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
