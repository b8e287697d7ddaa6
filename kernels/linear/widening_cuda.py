"""Codes of 4 and 8 bits as numbers in Triton kernels, exactly.

On a GPU, bfloat16 and float16 are made by PTX that widens two codes with each instruction. A code's bits are
put into the mantissa of a number of known exponent, from which that number's value is subtracted (Kim et al.
2022, "Who Says Elephants Can't Run"). Triton's interpreter has no PTX: it runs the same in plain Triton.
"""

import triton
import triton.language as tl
from triton import knobs

from ..common.codes_cuda import widen as plainly_widened

AS_PTX = tl.constexpr(not knobs.runtime.interpret)
TO_TWO, TO_FOUR = tl.constexpr("=&r,=&r,r"), tl.constexpr("=&r,=&r,=&r,=&r,r")
"""The operands of the PTX: one input register of four bytes, and two or four output registers of two numbers
each."""


def _block(code: str, **constants: int) -> tl.constexpr:
    """PTX with registers p, q and s, and one for each constant."""
    moves = "".join(f"mov.b32 {name}, {value:#010x};\n" for name, value in constants.items())
    return tl.constexpr(f"{{\n.reg .b32 {', '.join(['p, q, s', *constants])};\n{moves}{code}}}")


# A 4-bit code c with its sign bit inverted is the unsigned number c + 8. (p & mask) ^ magic inverts the sign
# bits of two codes and makes each code the last bits of a float, whose value then is a power of two plus c
# plus 8. Adding `offset` subtracts the power of two and 8, which leaves c.
NIBBLES_BFLOAT16 = _block(
    """
    prmt.b32 p, $4, 0, 0x4140;
    prmt.b32 q, $4, 0, 0x4342;
    lop3.b32 $0, p, 0x000f000f, 0x43084308, 0x6a;
    lop3.b32 $1, q, 0x000f000f, 0x43084308, 0x6a;
    shr.u32 p, p, 4;
    shr.u32 q, q, 4;
    lop3.b32 $2, p, 0x000f000f, 0x43084308, 0x6a;
    lop3.b32 $3, q, 0x000f000f, 0x43084308, 0x6a;
    fma.rn.bf16x2 $0, $0, one, offset;
    fma.rn.bf16x2 $1, $1, one, offset;
    fma.rn.bf16x2 $2, $2, one, offset;
    fma.rn.bf16x2 $3, $3, one, offset;
    """,
    one=0x3F803F80,
    offset=0xC308C308,  # -136
)
"""4 bytes → their low halves in 2 words, and their high halves in 2 words"""
NIBBLES_FLOAT16 = _block(
    """
    prmt.b32 p, $4, 0, 0x4140;
    prmt.b32 q, $4, 0, 0x4342;
    lop3.b32 $0, p, 0x000f000f, 0x64086408, 0x6a;
    lop3.b32 $1, q, 0x000f000f, 0x64086408, 0x6a;
    lop3.b32 $2, p, 0x00f000f0, 0x64806480, 0x6a;
    lop3.b32 $3, q, 0x00f000f0, 0x64806480, 0x6a;
    fma.rn.f16x2 $0, $0, one, offset;
    fma.rn.f16x2 $1, $1, one, offset;
    fma.rn.f16x2 $2, $2, sixteenth, high_offset;
    fma.rn.f16x2 $3, $3, sixteenth, high_offset;
    """,
    one=0x3C003C00,
    offset=0xE408E408,  # -1032
    sixteenth=0x2C002C00,
    high_offset=0xD480D480,  # -72
)
BYTES_FLOAT16 = _block(
    """
    xor.b32 s, $2, 0x80808080;
    prmt.b32 p, s, magic, 0x4140;
    prmt.b32 q, s, magic, 0x4342;
    fma.rn.f16x2 $0, p, one, offset;
    fma.rn.f16x2 $1, q, one, offset;
    """,
    magic=0x64646464,  # bytes of 1024
    one=0x3C003C00,
    offset=0xE480E480,  # -1152
)
"""4 bytes → 2 words"""
# Each code is extended to 16 bits by its sign, then shifted, so that its bits stand where the larger type has
# sign, exponent and mantissa. The mask removes copies of the sign, and bits of the other half.
FP8_BFLOAT16 = _block(
    """
    prmt.b32 p, $2, 0, 0x9180;
    prmt.b32 q, $2, 0, 0xb3a2;
    shl.b32 p, p, 4;
    shl.b32 q, q, 4;
    and.b32 p, p, 0x87f087f0;
    and.b32 q, q, 0x87f087f0;
    fma.rn.bf16x2 $0, p, scale, zero;
    fma.rn.bf16x2 $1, q, scale, zero;
    """,
    scale=0x77807780,  # 2 to the power of 112
    zero=0x80008000,  # -0
)
FP8_FLOAT16 = _block(
    """
    prmt.b32 p, $2, 0, 0x9180;
    prmt.b32 q, $2, 0, 0xb3a2;
    shl.b32 p, p, 7;
    shl.b32 q, q, 7;
    and.b32 $0, p, 0xbf80bf80;
    and.b32 $1, q, 0xbf80bf80;
    """
)
ONES_BFLOAT16 = _block("mov.b32 $0, 0x3f803f80; mov.b32 $1, 0x3f803f80;")
ONES_FLOAT16 = _block("mov.b32 $0, 0x3c003c00; mov.b32 $1, 0x3c003c00;")


@triton.jit
def nibbles(codes, dtype: tl.constexpr):
    """The signed codes in the low and in the high halves of int8 bytes: two tensors of `dtype`."""
    if AS_PTX:
        if dtype == tl.bfloat16:
            return tl.inline_asm_elementwise(
                NIBBLES_BFLOAT16, TO_FOUR, [codes], (tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
            )
        if dtype == tl.float16:
            return tl.inline_asm_elementwise(
                NIBBLES_FLOAT16, TO_FOUR, [codes], (tl.float16, tl.float16), is_pure=True, pack=4
            )
    return ((codes << 4) >> 4).to(dtype), (codes >> 4).to(dtype)


@triton.jit
def widen(codes, dtype: tl.constexpr, FP8: tl.constexpr):
    """int8 codes as numbers of `dtype`; those of FP8 (E4M3) are divided by 256."""
    if AS_PTX:
        if dtype == tl.float16:
            if FP8:
                return tl.inline_asm_elementwise(
                    FP8_FLOAT16, TO_TWO, [codes], tl.float16, is_pure=True, pack=4
                )
            return tl.inline_asm_elementwise(BYTES_FLOAT16, TO_TWO, [codes], tl.float16, is_pure=True, pack=4)
        if dtype == tl.bfloat16 and FP8:  # Triton itself widens int8 to bfloat16 in pairs
            return tl.inline_asm_elementwise(FP8_BFLOAT16, TO_TWO, [codes], tl.bfloat16, is_pure=True, pack=4)
    return plainly_widened(codes, dtype, FP8)


@triton.jit
def ones(codes, dtype: tl.constexpr):
    """Ones in the shape of `codes`. Products take them in the same layout of registers as widened codes, so
    both read the other factor once."""
    if AS_PTX:
        if dtype == tl.bfloat16:
            return tl.inline_asm_elementwise(
                ONES_BFLOAT16, TO_TWO, [codes], tl.bfloat16, is_pure=True, pack=4
            )
        if dtype == tl.float16:
            return tl.inline_asm_elementwise(ONES_FLOAT16, TO_TWO, [codes], tl.float16, is_pure=True, pack=4)
    return tl.full(codes.shape, 1.0, dtype)
