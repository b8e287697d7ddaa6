"""Triton kernels for many rows whose activations are rounded to the weight's type, int8 or FP8 (E4M3).

Each row has a scale for each of the weight's groups of inputs. Matrix instructions for bytes add a group's
products: those of int8 exactly, those of FP8 in float32, of which Hopper is reported to keep about 14 bits.
The sum is multiplied by both scales and added to the others in float32.
"""

import torch
import triton
import triton.language as tl

from ..common.codes_cuda import FP8_UNIT, encode, magnitude, scale_and_factor
from .coded_cuda import Stored, words

MIN_GROUP = 32
"""the inputs that one matrix instruction multiplies"""
FP8_CAPABILITY = (8, 9)
"""the first compute capability with matrix instructions for FP8"""

TENSOR_MEMORY_CAPABILITIES = ((10, 0), (12, 0))
"""GPUs from the first compute capability on, up to but without the second, add products in tensor memory."""

OUTPUTS = 128
"""outputs that a program of the product computes"""
STAGES = 3
"""groups of inputs for which a program of the product has buffers: it loads the next ones meanwhile"""
ROWS_OF_WARP = 16
"""rows of the product's tile for each warp"""
ROUNDED_ROWS = 16
"""rows that a program of `round_kernel` rounds"""


@triton.jit(do_not_specialize=["rows"])
def round_kernel(
    x, codes, scales, rows, inputs, groups,
    FP8: tl.constexpr, GROUP: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Rounds group program_id(1) of the inputs, for block program_id(0) of the rows.

    x: [rows, inputs]
    codes: int8 [rows, groups × GROUP], of FP8 its bits; those after the last input become 0
    scales: float32 [groups, rows], the group's largest magnitude / the type's largest number; NaN if the
    group has a value that is NaN or infinite
    """
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    group = tl.program_id(1)
    column = group * GROUP + tl.arange(0, GROUP)
    exists, source = row < rows, row.to(tl.int64)[:, None]
    read = exists[:, None] & (column < inputs)[None, :]
    value = tl.load(x + source * inputs + column[None, :], mask=read, other=0.0).to(tl.float32)
    scale, factor = scale_and_factor(magnitude(value, 1), FP8)
    target = codes + source * (groups * GROUP) + column[None, :]
    tl.store(target, encode(value, factor[:, None], FP8), mask=exists[:, None])
    tl.store(scales + group * rows + row, scale, mask=exists)


@triton.jit(do_not_specialize=["rows"])
def byte_product_kernel(
    x, x_scales, codes, scales, factors, bias, out, rows, outputs, groups,
    FP8: tl.constexpr, GROUP: tl.constexpr, BIAS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Multiplies block program_id(0) of the rows by block program_id(1) of the outputs.

    x, x_scales: as `round_kernel` writes them
    codes: int8 or FP8 [outputs, groups × GROUP]
    scales, factors: as in `coded_cuda.Stored`; pairs of float16 as int32 words
    """
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    output = tl.program_id(1) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    place = tl.arange(0, GROUP)
    # Places of the tile beyond the last row or output load that one again. Their results are not stored.
    row_read, output_read = tl.minimum(row, rows - 1), tl.minimum(output, outputs - 1)
    width = groups * GROUP
    x += row_read.to(tl.int64)[:, None] * width + place[None, :]
    codes += output_read.to(tl.int64)[None, :] * width + place[:, None]
    total = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    for group in tl.range(0, groups, num_stages=STAGES):
        part = tl.dot(tl.load(x + group * GROUP), tl.load(codes + group * GROUP))
        of_rows = tl.load(x_scales + group * rows + row_read)
        if FP8:
            of_outputs = tl.load(scales + group * outputs + output_read)
        else:
            word = tl.load(scales + group // 2 * outputs + output_read)
            half = (word >> (16 * (group % 2))).to(tl.int16)
            of_outputs = half.to(tl.float16, bitcast=True).to(tl.float32)
        total += part.to(tl.float32) * (of_rows[:, None] * of_outputs[None, :])
    factor = tl.load(factors + output_read)
    if FP8:
        factor /= FP8_UNIT  # `factors` are of codes that are read as their values / FP8_UNIT
    total *= factor[None, :]
    if BIAS:
        # One row, loaded once and added to all, would make sm_100 spill registers in the loop.
        column = tl.broadcast_to(output_read[None, :], [BLOCK_ROWS, BLOCK_OUTPUTS])
        total += tl.load(bias + column).to(tl.float32)
    written = (row < rows)[:, None] & (output < outputs)[None, :]
    at = row.to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=written)


def takes(weight: Stored, device: torch.device) -> bool:
    """Whether `multiply` can multiply with the weight on this device."""
    if weight.bits != 8 or weight.offsets is not None or weight.group < MIN_GROUP:
        return False
    has_fp8 = device.type != "cuda" or torch.cuda.get_device_capability(device) >= FP8_CAPABILITY
    return has_fp8 or not weight.is_fp8


def tile_rows(is_fp8: bool, capability: tuple[int, int]) -> int:
    """Returns how many rows a program computes. From tensor memory, Triton 3.6 loads all sums of a group into
    registers at once, and those of 128 rows would not fit."""
    first, end = TENSOR_MEMORY_CAPABILITIES
    return 64 if is_fp8 and first <= capability < end else 128


def multiply(x: torch.Tensor, weight: Stored, bias: torch.Tensor | None) -> torch.Tensor:
    """x wᵀ + bias for x [rows, inputs], contiguous, rounded to the type of the weight's codes."""
    rows, (outputs, width) = len(x), weight.codes.shape
    groups = width // weight.group
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    dtype = torch.float8_e4m3fn if weight.is_fp8 else torch.int8
    codes = torch.empty(rows, width, dtype=torch.int8, device=x.device)
    scales = torch.empty(groups, rows, device=x.device)
    round_kernel[(-(-rows // ROUNDED_ROWS), groups)](
        x,
        codes,
        scales,
        rows,
        weight.inputs,
        groups,
        FP8=weight.is_fp8,
        GROUP=weight.group,
        BLOCK_ROWS=ROUNDED_ROWS,
    )
    is_on_gpu = x.device.type == "cuda"
    tile = tile_rows(weight.is_fp8, torch.cuda.get_device_capability(x.device) if is_on_gpu else (0, 0))
    # Programs that run at the same time have few outputs and many rows: they read the same weights.
    byte_product_kernel[(-(-rows // tile), -(-outputs // OUTPUTS))](
        codes.view(dtype),
        scales,
        weight.codes.view(dtype),
        words(weight.scales),
        weight.factors,
        weight.factors if bias is None else bias,
        out,
        rows,
        outputs,
        groups,
        FP8=weight.is_fp8,
        GROUP=weight.group,
        BIAS=bias is not None,
        BLOCK_ROWS=tile,
        BLOCK_OUTPUTS=OUTPUTS,
        STAGES=STAGES,
        num_warps=tile // ROWS_OF_WARP,
    )
    return out
