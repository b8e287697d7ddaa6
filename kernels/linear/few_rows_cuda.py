"""A Triton kernel for products of 1 to 4 rows with weights of 16 bits, which are limited by memory bandwidth.

A program has few outputs, whose inputs are divided among all its threads. Each thread loads 16 bytes of each
output at a time and adds products in float32 registers; their sums are added once, at the end. No tensor
cores: a row has 1 of the 8 columns that they multiply.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

WARPS = 4


class Tiling(NamedTuple):
    """What a program multiplies at a time."""

    outputs: int
    inputs: int


@triton.jit
def _numbers(words, BFLOAT16: tl.constexpr):
    """int32 words → float32: the numbers in the low halves, and those in the high halves"""
    if BFLOAT16:
        return (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)
    low = words.to(tl.int16).to(tl.float16, bitcast=True)
    high = (words >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def _add_row(sums, x, low, high, word, words, WHOLE: tl.constexpr, BFLOAT16: tl.constexpr):
    """Adds to sums the products of a block of weights and a row x of `words` words. low, high: the weights at
    the words `word`, as float32"""
    if WHOLE:
        x_low, x_high = _numbers(tl.load(x + word), BFLOAT16)
    else:
        x_low, x_high = _numbers(tl.load(x + word, mask=word < words, other=0), BFLOAT16)
    return sums + low * x_low[None, :] + high * x_high[None, :]


@triton.jit
def _store_row(out, sums, bias, output, outputs, BIAS: tl.constexpr):
    result = tl.sum(sums, axis=1)
    if BIAS:
        result += tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)
    tl.store(out + output, result.to(out.dtype.element_ty), mask=output < outputs)


@triton.jit
def few_rows_kernel(
    x, weight, bias, out, outputs, words,
    ROWS: tl.constexpr, BFLOAT16: tl.constexpr, BIAS: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr, BLOCK_WORDS: tl.constexpr,
):  # fmt: skip
    """Multiplies x, int32 [ROWS, words], by weight, int32 [outputs, words], into out [ROWS, outputs]. A word
    holds two inputs.

    WHOLE: BLOCK_WORDS divides `words`.
    """
    output = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    # Outputs beyond the last one read the weights of the last one, and are not stored.
    weight += tl.minimum(output, outputs - 1).to(tl.int64)[:, None] * words
    sums_0 = tl.zeros([BLOCK_OUTPUTS, BLOCK_WORDS], tl.float32)
    sums_1 = sums_0
    sums_2 = sums_0
    sums_3 = sums_0
    for begin in range(0, words, BLOCK_WORDS):
        word = begin + tl.arange(0, BLOCK_WORDS)
        if WHOLE:
            low, high = _numbers(tl.load(weight + word[None, :]), BFLOAT16)
        else:
            loaded = tl.load(weight + word[None, :], mask=(word < words)[None, :], other=0)
            low, high = _numbers(loaded, BFLOAT16)
        sums_0 = _add_row(sums_0, x, low, high, word, words, WHOLE, BFLOAT16)
        if ROWS > 1:
            sums_1 = _add_row(sums_1, x + words, low, high, word, words, WHOLE, BFLOAT16)
        if ROWS > 2:
            sums_2 = _add_row(sums_2, x + 2 * words, low, high, word, words, WHOLE, BFLOAT16)
        if ROWS > 3:
            sums_3 = _add_row(sums_3, x + 3 * words, low, high, word, words, WHOLE, BFLOAT16)
    _store_row(out, sums_0, bias, output, outputs, BIAS)
    if ROWS > 1:
        _store_row(out + outputs, sums_1, bias, output, outputs, BIAS)
    if ROWS > 2:
        _store_row(out + 2 * outputs, sums_2, bias, output, outputs, BIAS)
    if ROWS > 3:
        _store_row(out + 3 * outputs, sums_3, bias, output, outputs, BIAS)


def multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tiling: Tiling
) -> torch.Tensor:
    """x wᵀ + bias for x [1 to 4 rows, inputs] and weight [outputs, inputs], both contiguous and bfloat16 or
    float16. The number of inputs is even."""
    rows, outputs = len(x), len(weight)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    words, block = x.shape[1] // 2, tiling.inputs // 2
    few_rows_kernel[(-(-outputs // tiling.outputs),)](
        x.view(torch.int32),
        weight.view(torch.int32),
        weight if bias is None else bias,
        out,
        outputs,
        words,
        ROWS=rows,
        BFLOAT16=x.dtype == torch.bfloat16,
        BIAS=bias is not None,
        WHOLE=words % block == 0,
        BLOCK_OUTPUTS=tiling.outputs,
        BLOCK_WORDS=block,
        num_warps=WARPS,
    )
    return out
