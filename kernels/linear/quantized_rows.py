"""Quantization of activations to 8 bits, by groups of each row.

A group's scale is its largest magnitude / 127 and its codes are rounded to the nearest, ties to even. Groups
whose magnitudes are all below 2 ** -100 count as 0. NaN or infinity makes the group's scale NaN.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common.jit import compiled
from ..common.llvm import I8, size, write
from ..common.numba_tools import float_with_bits, shift
from ..common.vectors import FLOATS, LANES, WORDS, floats, read_floats, reduce_lanes, splat, words

_INFINITY = np.int32(0x7F800000)
_SMALL = np.int32((127 - 100) << 23)
"""the bits of 2 ** -100"""
_ROUNDING = float(3 << 22)
"""A float32 whose last bit counts 1: adding it rounds to an integer."""
_ROUNDING_BITS = 0x4B400000


@intrinsic
def _largest(typing, x, vectors):
    """The bits of the largest magnitude of 16 × vectors values, as int32: NaN exceeds infinity."""

    def generate(context, builder, signature, arguments):
        start, count = arguments
        largest = cgutils.alloca_once_value(builder, ir.Constant(WORDS, None))
        with cgutils.for_range(builder, count) as loop:
            bits = builder.bitcast(_values(builder, start, loop.index, x.dtype), WORDS)
            magnitudes = builder.and_(bits, words(0x7FFFFFFF))
            before = builder.load(largest)
            above = builder.icmp_signed(">", magnitudes, before)
            builder.store(builder.select(above, magnitudes, before), largest)
        return reduce_lanes(builder, "smax", builder.load(largest))

    return types.int32(x, types.int64), generate


@intrinsic
def _write_codes(typing, x, vectors, inverse, codes):
    """Writes 16 × vectors values times `inverse`, rounded; returns their sum."""

    def generate(context, builder, signature, arguments):
        start, count, inverse, codes = arguments
        factor = splat(builder, inverse, FLOATS)
        rounding = floats(_ROUNDING)
        total = cgutils.alloca_once_value(builder, ir.Constant(WORDS, None))
        with cgutils.for_range(builder, count) as loop:
            values = builder.fmul(_values(builder, start, loop.index, x.dtype), factor)
            bits = builder.bitcast(builder.fadd(values, rounding), WORDS)
            rounded = builder.sub(bits, words(_ROUNDING_BITS))
            builder.store(builder.add(builder.load(total), rounded), total)
            place = builder.gep(codes, [builder.mul(loop.index, size(LANES))])
            write(builder, builder.trunc(rounded, ir.VectorType(I8, LANES)), place)
        return reduce_lanes(builder, "add", builder.load(total))

    return types.int32(x, types.int64, types.float32, codes), generate


def _values(builder: ir.IRBuilder, start: ir.Value, vector: ir.Value, stored: types.Type) -> ir.Value:
    return read_floats(builder, builder.gep(start, [builder.mul(vector, size(LANES))]), stored)


@compiled
def quantize_groups(x, count, parts, group, codes, codes_step, scales, sums, zero, has_offsets):
    """Quantize `count` × `parts` groups; `parts` groups share a scale.

    The codes of successive scales begin `codes_step` bytes apart.
    See `byte_dots.tile_products` for scales and sums; sums of int32 are stored by their bits.
    """
    for index in range(count):
        source = shift(x, index * parts * group)
        largest = _largest(source, parts * group // LANES)
        scale = inverse = np.float32(0)
        if largest >= _INFINITY:
            scale = np.float32(np.nan)
        elif largest >= _SMALL:
            magnitude = float_with_bits(largest)
            scale, inverse = magnitude / np.float32(127), np.float32(127) / magnitude
        scales[index] = scale
        for part in range(parts):
            wide = shift(source, part * group)
            target = shift(codes, index * codes_step + part * group)
            total = _write_codes(wide, group // LANES, inverse, target)
            if has_offsets:
                sums[index * parts + part] = np.float32(total)
            else:
                sums[index * parts + part] = float_with_bits(np.int32(-zero * total))
