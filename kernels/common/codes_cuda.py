# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""int8 and FP8 (E4M3) codes in Triton kernels. GPUs before sm_89 have no instruction for E4M3."""

import triton
import triton.language as tl

FP8_UNIT = tl.constexpr(256.0)
BFLOAT16_BITS, BFLOAT16_UNIT = tl.constexpr(-30736), tl.constexpr(2.0**112)
"""0x87F0: the places of the sign and of the other seven bits; and 2¹²⁰ / `FP8_UNIT`"""


@triton.jit
def widened(codes, dtype: tl.constexpr, FP8: tl.constexpr):
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
