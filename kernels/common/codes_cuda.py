"""int8 and FP8 (E4M3) codes in Triton kernels. GPUs before sm_89 have no instruction that converts E4M3, so
integer operations do."""

import triton
import triton.language as tl

FP8_UNIT = tl.constexpr(256.0)
BFLOAT16_BITS, BFLOAT16_UNIT = tl.constexpr(-30736), tl.constexpr(2.0**112)
"""0x87F0: the places of the sign and of the other seven bits; and 2¹²⁰ / `FP8_UNIT`"""

INFINITY = tl.constexpr(0x7F800000)
ROUND = tl.constexpr(12582912.0)
"""1.5 · 2²³: in the sum of this and a small number, the last bits are the number, rounded to an integer"""
ROUND_BITS = tl.constexpr(0x4B400000)
FP8_NORMAL = tl.constexpr(0x3C800000)
"""2⁻⁶, the smallest normal E4M3 number, as float32"""
FP8_ROUND = tl.constexpr(16384.0)
"""float32 of this size are multiples of 2⁻⁹, as are E4M3 numbers below the normal ones"""
FP8_ROUND_BITS = tl.constexpr(0x46800000)
MIN_MAGNITUDE = tl.constexpr(2.0**-100)
"""Values whose magnitudes are all below this count as 0."""


@triton.jit
def widen(codes, dtype: tl.constexpr, FP8: tl.constexpr):
    """int8 codes as numbers of `dtype`, exactly; those of FP8 are divided by `FP8_UNIT`."""
    if FP8:
        if dtype == tl.bfloat16:
            # The bits of an E4M3 number, moved to their places in a bfloat16, are the number / 2¹²⁰.
            moved = (codes.to(tl.int16) << 4) & BFLOAT16_BITS
            return moved.to(tl.int16).to(tl.bfloat16, bitcast=True) * BFLOAT16_UNIT
        # The bits of an E4M3 number, moved to their places in a float16, are the number / 256.
        moved = (codes.to(tl.int16) << 7) & -16385
        return moved.to(tl.int16).to(tl.float16, bitcast=True).to(dtype)
    return codes.to(dtype)


@triton.jit
def magnitude(values, axis: tl.constexpr):
    """The bits of the largest magnitudes of float32 values along an axis, int32; those of NaN are the
    largest."""
    return tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=axis)


@triton.jit
def scale_and_factor(largest, FP8: tl.constexpr):
    """The scale of values that share one, and the factor that makes codes of them.

    largest: see `magnitude`. The scale is NaN if a value is NaN or infinite.
    """
    most = 448.0 if FP8 else 127.0
    value = largest.to(tl.float32, bitcast=True)
    is_finite = largest < INFINITY
    is_coded = is_finite & (value >= MIN_MAGNITUDE)
    divisor = tl.where(is_coded, value, 1.0)
    factor = tl.where(is_coded, tl.div_rn(most, divisor), 0.0)
    scale = tl.where(is_coded, tl.div_rn(divisor, most), 0.0)
    return tl.where(is_finite, scale, float("nan")), factor


@triton.jit
def encode(values, factor, FP8: tl.constexpr):
    """int8 codes of float32 values, rounded to nearest even; zeros if the factor is 0."""
    scaled = tl.where(factor > 0.0, values * factor, 0.0)
    if FP8:
        bits = scaled.to(tl.int32, bitcast=True)
        size = bits & 0x7FFFFFFF
        # Rounds to three bits of the mantissa, and changes the exponent's bias from 127 to 7.
        normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
        small = (tl.abs(scaled) + FP8_ROUND).to(tl.int32, bitcast=True) - FP8_ROUND_BITS
        code = tl.where(size < FP8_NORMAL, small, normal)
        return (code | ((bits >> 24) & 0x80)).to(tl.int8)
    return ((scaled + ROUND).to(tl.int32, bitcast=True) - ROUND_BITS).to(tl.int8)
