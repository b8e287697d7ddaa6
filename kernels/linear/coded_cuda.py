# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Triton kernels for weights of 4 or 8 bits: the product of few rows, and expanding a weight for many rows.

A step of the weight is one byte of `GROUP` columns: a group of inputs, or with 4 bits two groups, the first
one in the low halves of the bytes. Codes are signed. A group's products are added before they are multiplied
by its scale, so codes are multiplied exactly.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..common.codes_cuda import widened

BLOCK_OUTPUTS = 64
MOST_BLOCK_ROWS = 64
MOST_COLUMNS = 64
"""of the codes that are multiplied at a time with more than 16 rows; more would spill registers"""

STAGES, FLOAT32_STAGES = 4, 2
"""blocks in flight; more of float32 would exceed the 99 KiB of shared memory that every GPU grants"""
PROGRAMS_FOR_EACH_PROCESSOR = 2
"""Products of few outputs are split along the inputs into about so many programs for each multiprocessor."""

LEAST_STEPS = 4
"""Steps of a program, at least, if a product is split."""

EXPANDED_OUTPUTS = 32


class Stored(NamedTuple):
    """A weight on the device."""

    codes: torch.Tensor
    """int8 [outputs, steps × group]; FP8: its bits"""
    scales: torch.Tensor
    """float16 or float32 [groups, outputs], relative to `factors`"""
    offsets: torch.Tensor | None
    """as `scales`; added to each code times its scale"""
    factors: torch.Tensor
    """float32 [outputs]"""
    inputs: int
    bits: int
    group: int
    """inputs of a group: 16, 32, 64 or 128"""
    is_fp8: bool


@triton.jit
def _add_group(
    total, x, row, column, rows, inputs, codes, scales, offsets, output, outputs, group,
    FP8: tl.constexpr, OFFSETS: tl.constexpr,
):  # fmt: skip
    """total + the product of a group's inputs. codes: int8 [BLOCK_OUTPUTS, GROUP]"""
    inside = (row < rows)[:, None] & (column < inputs)[None, :]
    part = tl.load(x + row.to(tl.int64)[:, None] * inputs + column[None, :], mask=inside, other=0.0)
    at = group * outputs + output
    scale = tl.load(scales + at, mask=output < outputs, other=0.0).to(tl.float32)
    weight = tl.trans(widened(codes, part.dtype, FP8))
    total += tl.dot(part, weight, input_precision="ieee") * scale[None, :]
    if OFFSETS:
        offset = tl.load(offsets + at, mask=output < outputs, other=0.0).to(tl.float32)
        total += tl.sum(part.to(tl.float32), axis=1)[:, None] * offset[None, :]
    return total


# Compiled once for any number of rows, which changes from step to step.
@triton.jit(do_not_specialize=["rows", "steps_each"])
def product_kernel(
    x, codes, scales, offsets, factors, bias, out, rows, outputs, inputs, steps, steps_each,
    BITS: tl.constexpr, GROUP: tl.constexpr, SLICE: tl.constexpr, FP8: tl.constexpr, OFFSETS: tl.constexpr,
    BIAS: tl.constexpr, SPLIT: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """A block of outputs program_id(0) for the rows program_id(1), over the steps program_id(2).

    Here a step is one byte of `SLICE` columns, which divides GROUP.
    out: [rows, outputs], or if SPLIT float32 [splits, rows, outputs] for `merge_kernel`.
    """
    output = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    split = tl.program_id(2)
    place = tl.arange(0, SLICE)
    # Outputs beyond the last one read the codes of the last one, and are not stored.
    codes += tl.minimum(output, outputs - 1).to(tl.int64)[:, None] * (steps * SLICE) + place[None, :]
    total = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    for step in range(split * steps_each, tl.minimum(steps, (split + 1) * steps_each)):
        byte = tl.load(codes + step * SLICE)
        group = step // (GROUP // SLICE)
        if BITS == 4:
            column = group * GROUP + step * SLICE + place
            total = _add_group(
                total, x, row, column, rows, inputs, (byte << 4) >> 4, scales, offsets, output, outputs,
                2 * group, FP8, OFFSETS,
            )  # fmt: skip
            total = _add_group(
                total, x, row, column + GROUP, rows, inputs, byte >> 4, scales, offsets, output, outputs,
                2 * group + 1, FP8, OFFSETS,
            )  # fmt: skip
        else:
            total = _add_group(
                total, x, row, step * SLICE + place, rows, inputs, byte, scales, offsets, output, outputs,
                group, FP8, OFFSETS,
            )  # fmt: skip
    stored = (row < rows)[:, None] & (output < outputs)[None, :]
    at = row.to(tl.int64)[:, None] * outputs + output[None, :]
    if SPLIT:
        out += split.to(tl.int64) * rows * outputs
    else:
        total *= tl.load(factors + output, mask=output < outputs, other=0.0)[None, :]
        if BIAS:
            total += tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize=["size", "splits"])
def merge_kernel(
    partial, factors, bias, out, size, outputs, splits, BIAS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Add partial results float32 [splits, rows, outputs] in order. size: rows × outputs"""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(splits):
        total += tl.load(partial + split * size.to(tl.int64) + at, mask=inside, other=0.0)
    output = at % outputs
    total *= tl.load(factors + output)
    if BIAS:
        total += tl.load(bias + output).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["first", "end"])
def expand_kernel(
    codes, scales, offsets, factors, out, first, outputs, inputs, steps, end,
    BITS: tl.constexpr, GROUP: tl.constexpr, FP8: tl.constexpr, OFFSETS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Expands group program_id(1) of the outputs from `first` to `end`. out: [end - first, inputs]"""
    row = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    output = first + row
    exists = output < end
    group = tl.program_id(1)
    step = group // 2 if BITS == 4 else group
    place = tl.arange(0, GROUP)
    at = output.to(tl.int64)[:, None] * (steps * GROUP) + step * GROUP + place[None, :]
    code = tl.load(codes + at, mask=exists[:, None], other=0)
    if BITS == 4:
        code = (code << (4 - 4 * (group % 2)).to(tl.int8)) >> 4
    at = group * outputs + output
    factor = tl.load(factors + output, mask=exists, other=0.0)
    scale = tl.load(scales + at, mask=exists, other=0.0).to(tl.float32)
    weight = widened(code, tl.float32, FP8) * scale[:, None]
    if OFFSETS:
        weight += tl.load(offsets + at, mask=exists, other=0.0).to(tl.float32)[:, None]
    column = group * GROUP + place
    inside = exists[:, None] & (column < inputs)[None, :]
    target = out + row.to(tl.int64)[:, None] * inputs + column[None, :]
    tl.store(target, (weight * factor[:, None]).to(out.dtype.element_ty), mask=inside)


def multiply(x: torch.Tensor, weight: Stored, bias: torch.Tensor | None) -> torch.Tensor:
    """x wᵀ + bias for x [rows, inputs], contiguous; reads the weight once for each 64 rows."""
    rows, outputs = len(x), len(weight.codes)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    block_rows = min(MOST_BLOCK_ROWS, max(16, triton.next_power_of_2(rows)))
    blocks = -(-outputs // BLOCK_OUTPUTS), -(-rows // block_rows)
    columns = weight.group if block_rows == 16 else min(weight.group, MOST_COLUMNS)
    steps = weight.codes.shape[1] // columns
    splits = split_count(blocks[0] * blocks[1], steps, processors(x.device))
    partial = out
    if splits > 1:
        partial = torch.empty(splits, rows, outputs, dtype=torch.float32, device=x.device)
    product_kernel[(*blocks, splits)](
        x,
        weight.codes,
        weight.scales,
        weight.offsets if weight.offsets is not None else weight.scales,
        weight.factors,
        weight.factors if bias is None else bias,
        partial,
        rows,
        outputs,
        weight.inputs,
        steps,
        -(-steps // splits),
        BITS=weight.bits,
        GROUP=weight.group,
        SLICE=columns,
        FP8=weight.is_fp8,
        OFFSETS=weight.offsets is not None,
        BIAS=bias is not None,
        SPLIT=splits > 1,
        BLOCK_ROWS=block_rows,
        BLOCK_OUTPUTS=BLOCK_OUTPUTS,
        num_warps=4,
        num_stages=FLOAT32_STAGES if x.element_size() == 4 else STAGES,
    )
    if splits > 1:
        merge_kernel[(-(-out.numel() // 1024),)](
            partial,
            weight.factors,
            weight.factors if bias is None else bias,
            out,
            out.numel(),
            outputs,
            splits,
            BIAS=bias is not None,
            BLOCK=1024,
        )
    return out


def expand(weight: Stored, first: int, end: int, dtype: torch.dtype) -> torch.Tensor:
    """The weights of some outputs, [end - first, inputs]."""
    codes = weight.codes
    out = torch.empty(end - first, weight.inputs, dtype=dtype, device=codes.device)
    groups = -(-weight.inputs // weight.group)
    expand_kernel[(-(-(end - first) // EXPANDED_OUTPUTS), groups)](
        codes,
        weight.scales,
        weight.offsets if weight.offsets is not None else weight.scales,
        weight.factors,
        out,
        first,
        len(codes),
        weight.inputs,
        codes.shape[1] // weight.group,
        end,
        BITS=weight.bits,
        GROUP=weight.group,
        FP8=weight.is_fp8,
        OFFSETS=weight.offsets is not None,
        BLOCK_OUTPUTS=EXPANDED_OUTPUTS,
    )
    return out


def split_count(blocks: int, steps: int, processors: int) -> int:
    """Into how many programs the inputs of each block of outputs are split."""
    wanted = -(-processors * PROGRAMS_FOR_EACH_PROCESSOR // blocks)
    each = -(-steps // max(1, min(wanted, steps // LEAST_STEPS)))
    return -(-steps // each)


def processors(device: torch.device) -> int:
    """Multiprocessors of the GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
