"""Triton kernels for weights of 4 or 8 bits: the product of few rows, and expanding a weight for many rows.

A step is `GROUP` bytes of each output: the codes of a group of inputs or, with 4 bits, of two groups, the
first one in the low halves of the bytes. Codes are signed. A group's products are added before they are
multiplied by its scale, so codes are multiplied exactly.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from .widening_cuda import nibbles, ones, widen

FEW_ROWS, MAX_BLOCK_ROWS = 16, 64
MAX_TURN_COLUMNS = 128
"""columns of the codes that are multiplied at a time"""
MAX_COLUMNS = 64
"""the same with more than FEW_ROWS; more would spill registers"""

STAGES, FLOAT32_STAGES = 4, 2
"""blocks in flight; more of float32 would exceed the 99 KiB of shared memory that every GPU grants"""

MIN_TURNS = 4
"""turns of a program's loop, if a product is split"""

EXPANDED_OUTPUTS = 32


class Stored(NamedTuple):
    """A weight on the device."""

    codes: torch.Tensor
    """int8 [outputs, steps × group]; FP8: its bits"""
    scales: torch.Tensor
    """relative to `factors`: float16 [pairs of groups, outputs, 2]; FP8: float32 [groups, outputs]"""
    offsets: torch.Tensor | None
    """as `scales`; added to each code times its scale"""
    factors: torch.Tensor
    """float32 [outputs]"""
    inputs: int
    bits: int
    group: int
    """inputs of a group: 16, 32, 64 or 128"""
    is_fp8: bool


class Tiles(NamedTuple):
    """What a program multiplies in a turn of its loop."""

    rows: int
    outputs: int
    columns: int
    """columns of bytes (see `product_kernel`)"""
    steps: int
    warps: int
    programs: int
    """Programs for each multiprocessor into which products of few outputs are split along the inputs, at
    most."""

    @staticmethod
    def choose(rows: int, weight: Stored) -> "Tiles":
        """Of up to 16 rows, two warps multiply 32 outputs: Triton then keeps the weights in registers, while
        for four warps and 64 outputs it takes Hopper's products, whose layout widened codes don't have."""
        if rows > FEW_ROWS:
            block = min(MAX_BLOCK_ROWS, triton.next_power_of_2(rows))
            return Tiles(block, 64, min(weight.group, MAX_COLUMNS), 1, 4, 2)
        steps = weight.codes.shape[1] // weight.group
        together = next(n for n in (4, 2, 1) if n * weight.group <= MAX_TURN_COLUMNS and steps % n == 0)
        return Tiles(8 if rows <= 8 else 16, 32, weight.group, together, 2, 8)


@triton.jit
def _add_group(total, part, byte, weight, scale, offset, OFFSETS: tl.constexpr):
    """total + scale × (`weight` · `part`), and with OFFSETS also + offset × the sums of `part`'s columns.

    weight: a group's codes as numbers [BLOCK_OUTPUTS, inputs]; part: its inputs [inputs, rows]
    byte: the codes as stored, whose shape the ones that sum `part` take
    """
    total += tl.dot(weight, part, input_precision="ieee") * scale.to(tl.float32)[:, None]
    if OFFSETS:
        # A product adds the inputs of each row where they are; `tl.sum` would move them between threads.
        sums = tl.dot(ones(byte, part.dtype), part, input_precision="ieee")
        total += sums * offset.to(tl.float32)[:, None]
    return total


@triton.jit
def _part(x, column, inputs, WHOLE: tl.constexpr):
    """The inputs `column` [columns, 1] of the rows to which x [1, rows] points"""
    if WHOLE:
        return tl.load(x + column)
    return tl.load(x + column, mask=column < inputs, other=0.0)


@triton.jit
def _half(words, high):
    """The float16 in the low (0) or high (1) halves of int32 words."""
    return (words >> (16 * high)).to(tl.int16).to(tl.float16, bitcast=True)


# Compiled once for any number of rows, which changes from step to step.
@triton.jit(do_not_specialize=["rows", "steps_each"])
def product_kernel(
    x, codes, scales, offsets, factors, bias, out, rows, outputs, inputs, steps, steps_each,
    BITS: tl.constexpr, GROUP: tl.constexpr, SLICE: tl.constexpr, STEPS: tl.constexpr, FP8: tl.constexpr,
    OFFSETS: tl.constexpr, BIAS: tl.constexpr, SPLIT: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Computes block program_id(0) of the outputs for block program_id(1) of the rows, over part
    program_id(2) of the steps.

    Here a step is one byte of `SLICE` columns, which divides GROUP. A turn of the loop has STEPS of them, a
    number that divides `steps` and `steps_each`. Weights are left factors, whose tiles are larger.
    WHOLE: no group is smaller than GROUP and, with 4 bits, the number of groups is even
    scales, offsets: as in `Stored`; pairs of float16 as int32 words
    out: [rows, outputs], or if SPLIT float32 [splits, rows, outputs] for `merge_kernel`
    """
    output = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    split = tl.program_id(2)
    place = tl.arange(0, SLICE)
    # Places of the tile beyond the last output or row load that one again. Their results are not stored.
    source = tl.minimum(output, outputs - 1)
    codes += source.to(tl.int64)[:, None] * (steps * SLICE) + place[None, :]
    x += tl.minimum(row, rows - 1).to(tl.int64)[None, :] * inputs
    total = tl.zeros([BLOCK_OUTPUTS, BLOCK_ROWS], tl.float32)
    dtype: tl.constexpr = x.dtype.element_ty
    end = tl.minimum(steps, (split + 1) * steps_each)
    for begin in tl.range(split * steps_each, end, STEPS, num_stages=STAGES):
        for place_in_turn in tl.static_range(STEPS):
            step = begin + place_in_turn
            byte = tl.load(codes + step * SLICE)
            stored = step // (GROUP // SLICE)
            pair = stored // 2 if BITS == 8 and not FP8 else stored
            scale = tl.load(scales + pair * outputs + source)
            offset = tl.load(offsets + pair * outputs + source) if OFFSETS else scale
            if BITS == 4:
                column = (stored * GROUP + step * SLICE + place)[:, None]
                first = _part(x, column, inputs, WHOLE)
                second = _part(x, column + GROUP, inputs, WHOLE)
                low, high = nibbles(byte, dtype)
                total = _add_group(total, first, byte, low, _half(scale, 0), _half(offset, 0), OFFSETS)
                total = _add_group(total, second, byte, high, _half(scale, 1), _half(offset, 1), OFFSETS)
            else:
                if not FP8:
                    scale, offset = _half(scale, stored % 2), _half(offset, stored % 2)
                part = _part(x, (step * SLICE + place)[:, None], inputs, WHOLE)
                weight = widen(byte, dtype, FP8)
                total = _add_group(total, part, byte, weight, scale, offset, OFFSETS)
    written = (output < outputs)[:, None] & (row < rows)[None, :]
    at = row.to(tl.int64)[None, :] * outputs + output[:, None]
    if SPLIT:
        out += split.to(tl.int64) * rows * outputs
    else:
        total *= tl.load(factors + output, mask=output < outputs, other=0.0)[:, None]
        if BIAS:
            total += tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)[:, None]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=written)


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
    at = group * outputs + output if FP8 else (group // 2 * outputs + output) * 2 + group % 2
    factor = tl.load(factors + output, mask=exists, other=0.0)
    scale = tl.load(scales + at, mask=exists, other=0.0).to(tl.float32)
    weight = widen(code, tl.float32, FP8) * scale[:, None]
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
    tiles = Tiles.choose(rows, weight)
    blocks = -(-outputs // tiles.outputs), -(-rows // tiles.rows)
    turns = weight.codes.shape[1] // (tiles.columns * tiles.steps)
    splits = split_count(blocks[0] * blocks[1], turns, tiles.programs * processors(x.device))
    partial = out
    if splits > 1:
        partial = torch.empty(splits, rows, outputs, dtype=torch.float32, device=x.device)
    scales = words(weight.scales)
    offsets = None if weight.offsets is None else words(weight.offsets)
    product_kernel[(*blocks, splits)](
        x,
        weight.codes,
        scales,
        scales if offsets is None else offsets,
        weight.factors,
        weight.factors if bias is None else bias,
        partial,
        rows,
        outputs,
        weight.inputs,
        turns * tiles.steps,
        -(-turns // splits) * tiles.steps,
        BITS=weight.bits,
        GROUP=weight.group,
        SLICE=tiles.columns,
        STEPS=tiles.steps,
        FP8=weight.is_fp8,
        OFFSETS=weight.offsets is not None,
        BIAS=bias is not None,
        SPLIT=splits > 1,
        BLOCK_ROWS=tiles.rows,
        BLOCK_OUTPUTS=tiles.outputs,
        WHOLE=weight.inputs * weight.bits == weight.codes.shape[1] * 8,
        STAGES=FLOAT32_STAGES if x.element_size() == 4 else STAGES,
        num_warps=tiles.warps,
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


def words(table: torch.Tensor) -> torch.Tensor:
    """Returns a table of float16 as int32 words of two numbers, because asynchronous copies have at least 4
    bytes, and a table of float32 as it is."""
    return table if table.dtype == torch.float32 else table.view(torch.int32)


def split_count(blocks: int, turns: int, programs: int) -> int:
    """Into how many programs the turns of each block are split, so that there are at most `programs`."""
    each = -(-turns // max(1, min(programs // blocks, turns // MIN_TURNS)))
    return -(-turns // each)


def processors(device: torch.device) -> int:
    """Multiprocessors of the GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
