# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Quantization of activations to 8 bits, by groups of each row.

A group's scale is its largest magnitude / 127 and its codes are rounded to the nearest, ties to even. Groups
whose magnitudes are all below 2 ** -100 count as 0. NaN or infinity makes the group's scale NaN.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..common.jit import compiled
from ..common.numba_tools import load, shifted

_INFINITY = np.int32(0x7F800000)
_SMALL = np.int32((127 - 100) << 23)
"""the bits of 2 ** -100"""
_ROUNDING = np.float32(3 << 22)
"""A float32 whose last bit counts 1: adding it rounds to an integer."""


@intrinsic
def _bits(typing, value):
    """The bits of a float32 as int32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def _float(typing, bits):
    """The float32 with the bits of an int32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@compiled
def quantize_groups(x, first, count, group, codes, scales, sums, zero, has_offsets):
    """Quantize `count` groups of a row from group `first` on.

    x, codes, scales and sums point to the row; see `byte_dots.tile_products` for sums.
    """
    for index in range(first, first + count):
        source, target = shifted(x, index * group), shifted(codes, index * group)
        largest = np.int32(0)
        for i in range(group):
            largest = max(largest, _bits(load(source, i)) & np.int32(0x7FFFFFFF))
        total, scale = np.int32(0), np.float32(0)
        if largest >= _INFINITY:
            scale = np.float32(np.nan)
        elif largest >= _SMALL:
            scale = _float(largest) / np.float32(127)
        if largest < _SMALL or largest >= _INFINITY:
            for i in range(group):
                target[i] = np.int8(0)
        else:
            inverse = np.float32(127) / _float(largest)
            for i in range(group):
                code = np.int8(_bits(load(source, i) * inverse + _ROUNDING))
                target[i] = code
                total += np.int32(code)
        scales[index] = scale
        if has_offsets:
            sums[index] = scale * np.float32(total)
        else:
            sums[index] = _float(np.int32(-zero * total))
