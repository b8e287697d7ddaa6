# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""The scaled cells of the KV cache (see `cells`) in Triton kernels.

Kernels read the codes as int8 and the scales from a view of the same cache as float32. FP8 is converted by
integer operations, because GPUs before sm_89 have no instruction for E4M3.
"""

import torch
import triton
import triton.language as tl

from .cells import CellFormat

INFINITY = tl.constexpr(0x7F800000)
ROUND = tl.constexpr(12582912.0)
"""1.5 · 2²³: in the sum of this and a small number, the last bits are the number, rounded to an integer"""
ROUND_BITS = tl.constexpr(0x4B400000)
FP8_NORMAL = tl.constexpr(0x3C800000)
"""2⁻⁶, the smallest normal E4M3 number, as float32"""
FP8_ROUND = tl.constexpr(16384.0)
"""float32 of this size are multiples of 2⁻⁹, as are E4M3 numbers below the normal ones"""
FP8_ROUND_BITS = tl.constexpr(0x46800000)
SMALLEST = tl.constexpr(2.0**-100)


def codes_and_scales(kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the cache as int8 and as float32; the cache itself twice if its cells have no scales."""
    if not CellFormat(kv.dtype).is_scaled:
        return kv, kv
    return kv.view(torch.int8), kv.view(torch.float32)


@triton.jit
def magnitude(values):
    """The bits of the largest magnitude of float32 values, int32; those of NaN are the largest."""
    return tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF)


@triton.jit
def scale_and_factor(largest, FP8: tl.constexpr):
    """The scale of a cell, and the factor that makes codes of its values. largest: see `magnitude`."""
    most = 448.0 if FP8 else 127.0
    value = largest.to(tl.float32, bitcast=True)
    is_finite = largest < INFINITY
    is_coded = is_finite & (value >= SMALLEST)
    divisor = tl.where(is_coded, value, 1.0)
    factor = tl.where(is_coded, tl.div_rn(most, divisor), 0.0)
    scale = tl.where(is_coded, tl.div_rn(divisor, most), 0.0)
    return tl.where(is_finite, scale, float("nan")), factor


@triton.jit
def coded(values, factor, FP8: tl.constexpr):
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
