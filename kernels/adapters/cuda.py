"""Additions of adapters on CUDA: one grouped product of Triton, launched for A and then for B."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .layout import BLOCK_ROWS, DOWN, RANK, SCALES, UP, ProductTable

BLOCK_OUTPUTS = {True: 64, False: 16}
"""outputs of a program: of B and of A"""
BLOCK_INPUTS = {True: 16, False: 128}
"""inputs that a program multiplies at a time"""


@triton.jit(do_not_specialize=["count"])
def grouped_product_kernel(
    rows, entries, ends, x, y, count, step, inputs, outputs, width, PARTS: tl.constexpr, ADD: tl.constexpr,
    RANK: tl.constexpr, MATRIX: tl.constexpr, SCALES: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
):  # fmt: skip
    """Multiplies a block of rows by a tile of a matrix of their adapter.

    Without ADD: y[place, :] = scale · A x[row], for x [count, inputs] and y float32 [count, width]. With ADD:
    y[row, :] += B x[place], for x float32 [count, width] and y [count, outputs].
    A tile lies within one part. rows: see `group_rows`
    """
    block, tile = tl.program_id(0), tl.program_id(1)
    if block < tl.load(rows):
        at = rows + 1 + count + 3 * block
        entry = entries + tl.load(at).to(tl.int64) * step
        first, number = tl.load(at + 1), tl.load(at + 2)
        rank = tl.load(entry + RANK)
        # The tile's part, and its outputs: those of B, or the rows of A.
        part = 0
        begin = tile * BLOCK_OUTPUTS
        limit = outputs
        if ADD:
            start = 0
            tiles = 0
            for each in tl.static_range(PARTS):
                end = tl.load(ends + each).to(tl.int32)
                more = tl.cdiv(end - start, BLOCK_OUTPUTS)
                inside = (tile >= tiles) & (tile < tiles + more)
                part = tl.where(inside, each, part)
                begin = tl.where(inside, start + (tile - tiles) * BLOCK_OUTPUTS, begin)
                limit = tl.where(inside, end, limit)
                start = end
                tiles += more
        else:
            per_part = tl.cdiv(rank.to(tl.int32), BLOCK_OUTPUTS)
            part = tl.where(per_part > 0, tile // tl.maximum(per_part, 1), PARTS)
            begin = part * rank.to(tl.int32) + tile % tl.maximum(per_part, 1) * BLOCK_OUTPUTS
            limit = (part + 1) * rank.to(tl.int32)
        parts = tl.where(rank > 0, PARTS, 0)
        if part < parts:
            scale = tl.load(tl.load(entry + SCALES).to(tl.pointer_type(tl.float32)) + part)
            element = y.dtype.element_ty if ADD else x.dtype.element_ty
            matrix = tl.load(entry + MATRIX).to(tl.pointer_type(element))
            index = tl.arange(0, BLOCK_ROWS)
            is_row = index < number
            row = tl.load(rows + 1 + first + index, mask=is_row, other=0).to(tl.int64)
            place = (first + index).to(tl.int64)
            output = begin + tl.arange(0, BLOCK_OUTPUTS)
            is_output = output < limit
            inner = tl.arange(0, BLOCK_INPUTS)
            sums = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
            if ADD:
                for k in range(0, rank, BLOCK_INPUTS):
                    some = k + inner
                    mask = is_row[:, None] & (some < rank)[None, :]
                    left = tl.load(
                        x + place[:, None] * width + part * rank + some[None, :], mask=mask, other=0.0
                    )
                    weights = tl.load(
                        matrix + some[:, None].to(tl.int64) * outputs + output[None, :],
                        mask=(some < rank)[:, None] & is_output[None, :],
                        other=0.0,
                    )
                    sums = tl.dot(left.to(element), weights, sums, input_precision="ieee")
                to = y + row[:, None] * outputs + output[None, :]
                mask = is_row[:, None] & is_output[None, :]
                before = tl.load(to, mask=mask, other=0.0).to(tl.float32)
                tl.store(to, (before + sums).to(element), mask=mask)
            else:
                for k in range(0, inputs, BLOCK_INPUTS):
                    some = k + inner
                    mask = is_row[:, None] & (some < inputs)[None, :]
                    left = tl.load(x + row[:, None] * inputs + some[None, :], mask=mask, other=0.0)
                    weights = tl.load(
                        matrix + output[None, :].to(tl.int64) * inputs + some[:, None],
                        mask=(some < inputs)[:, None] & is_output[None, :],
                        other=0.0,
                    )
                    sums = tl.dot(left, weights, sums, input_precision="ieee")
                to = y + place[:, None] * width + output[None, :]
                tl.store(to, sums * scale, mask=is_row[:, None] & is_output[None, :])


def add_products(table: ProductTable, rows: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    low = torch.empty(len(x), table.width, dtype=torch.float32, device=x.device)
    _launch(table, rows, x, low, y.shape[1], add=False)
    _launch(table, rows, low, y, y.shape[1], add=True)


def _launch(
    table: ProductTable, rows: torch.Tensor, x: torch.Tensor, y: torch.Tensor, outputs: int, add: bool
) -> None:
    count, parts, block = len(x), table.sizes, BLOCK_OUTPUTS[add]
    ranks = [table.max_rank] * len(parts)
    tiles = sum(-(-size // block) for size in (parts if add else ranks))
    blocks = min(count, -(-count // BLOCK_ROWS) + len(table.entries))
    grouped_product_kernel[(blocks, tiles)](
        rows,
        table.entries,
        table.ends,
        x,
        y,
        count,
        table.step,
        x.shape[1],
        outputs,
        table.width,
        PARTS=len(parts),
        ADD=add,
        RANK=RANK,
        MATRIX=UP if add else DOWN,
        SCALES=SCALES,
        BLOCK_ROWS=BLOCK_ROWS,
        BLOCK_OUTPUTS=block,
        BLOCK_INPUTS=BLOCK_INPUTS[add],
        num_warps=4,
    )
