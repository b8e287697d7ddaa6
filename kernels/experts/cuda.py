"""Experts on CUDA: rows sorted by experts, and a Triton product with all their weights in one launch.

Nothing waits for the device, so CUDA graphs capture it. Only the device knows how many rows each expert has,
so a launch has as many programs as any routing of the step needs, and those without rows end at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

MIN_ROWS, MAX_ROWS = 16, 64
"""rows of a program, powers of two"""
OUTPUTS = {2: 64, 4: 32}
INPUTS = {2: 64, 4: 32}
"""outputs of a program, and inputs that it multiplies at a time, by bytes of an element"""
STAGES = 3
GATED = 1024
"""columns of a program of `gate_kernel`"""


class Order(NamedTuple):
    """Pairs of a token and one of its experts, sorted by experts: each pair is a row of the products."""

    tokens: torch.Tensor
    """int64 [rows], the token of each row"""
    places: torch.Tensor
    """int64 [tokens, k], the row of each pair"""
    starts: torch.Tensor
    """int32 [experts + 1], the first row of each expert; rows from the last one on have no expert"""


def choose(logits: torch.Tensor, k: int, renormalizes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """As `sorting_cpu.choose`."""
    wide = logits.float()
    largest, numbers = wide.topk(k, dim=-1)
    return numbers, largest.softmax(-1) if renormalizes else (
        largest - wide.logsumexp(-1, keepdim=True)
    ).exp()


def sort(experts: torch.Tensor, count: int) -> Order:
    """experts: [tokens, k]; count: the number of experts"""
    numbers, order = experts.reshape(-1).to(torch.int32).sort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    every = torch.arange(count + 1, dtype=torch.int32, device=order.device)
    starts = torch.searchsorted(numbers, every, out_int32=True)
    return Order(order // experts.shape[1], places.view(experts.shape), starts)


def combine(results: torch.Tensor, order: Order, shares: torch.Tensor) -> torch.Tensor:
    """As `sorting_cpu.combine`."""
    exists = (order.places < order.starts[-1])[..., None]
    chosen = torch.where(exists, results[order.places].float(), 0)
    return (chosen * shares[..., None].float()).sum(1).to(results.dtype)


@triton.jit(do_not_specialize=["alpha", "limit"])
def gate_kernel(gate_up, out, width, alpha, limit, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + 2 * row * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (2 * row + 1) * width + column, mask=inside, other=0.0).to(tl.float32)
    gate = tl.where(gate > limit, limit, gate)  # NaN stays
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    gated = (up + 1.0) * gate / (1.0 + tl.exp(-alpha * gate))
    tl.store(out + row * width + column, gated.to(out.dtype.element_ty), mask=inside)


def clamp_and_gate(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """As `experts.clamp_and_gate`."""
    assert gate_up.is_contiguous()
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    gate_kernel[(rows, triton.cdiv(width, GATED))](gate_up, out, width, alpha, limit, BLOCK=GATED)
    return out


@triton.jit(do_not_specialize=["rows", "blocks"])
def grouped_product_kernel(
    x, tokens, starts, weight, bias, out, rows, blocks, experts, outputs, inputs,
    GATHERS: tl.constexpr, BIAS: tl.constexpr, WHOLE: tl.constexpr, EXPERTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out[row] = x[row] · the weight of the row's expert, plus its bias.

    x: [rows, inputs], or [tokens, inputs] if GATHERS, of which a row has that of its token; tokens: int64
    [rows]; starts: int32 [experts + 1]; weight: [experts, outputs, inputs]; bias: [experts, outputs]; out:
    [rows, outputs]. The blocks of rows of all experts are numbered in order; a program has one of them.
    WHOLE: BLOCK_INPUTS divides `inputs`. EXPERTS: a power of two, at least `experts`.
    """
    number = tl.arange(0, EXPERTS)
    begin = tl.load(starts + number, mask=number < experts, other=0)
    end = tl.load(starts + number + 1, mask=number < experts, other=0)
    of_expert = (end - begin + BLOCK_ROWS - 1) // BLOCK_ROWS
    blocks_end = tl.cumsum(of_expert, 0)
    # Programs of one block of outputs are neighbours, so that they share the weights in the cache.
    block = tl.program_id(0)
    if block < tl.sum(of_expert, 0):
        expert = tl.sum((blocks_end <= block).to(tl.int32), 0)
        is_expert = number == expert
        first = tl.sum(tl.where(is_expert, begin, 0), 0)
        before = tl.sum(tl.where(is_expert, blocks_end - of_expert, 0), 0)
        row = first + (block - before) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        exists = row < tl.sum(tl.where(is_expert, end, 0), 0)
        source = tl.minimum(row, rows - 1).to(tl.int64)
        if GATHERS:
            source = tl.load(tokens + source)
        output = tl.program_id(1) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
        # Outputs beyond the last one read the weights of the last one, and are not stored.
        read = expert.to(tl.int64) * outputs + tl.minimum(output, outputs - 1)
        sums = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
        for start in tl.range(0, inputs, BLOCK_INPUTS, num_stages=STAGES):
            column = start + tl.arange(0, BLOCK_INPUTS)
            left = x + source[:, None] * inputs + column[None, :]
            right = weight + read[None, :] * inputs + column[:, None]
            if WHOLE:
                sums = tl.dot(tl.load(left), tl.load(right), sums, input_precision="ieee")
            else:
                inside = column < inputs
                values = tl.load(left, mask=inside[None, :], other=0.0)
                weights = tl.load(right, mask=inside[:, None], other=0.0)
                sums = tl.dot(values, weights, sums, input_precision="ieee")
        if BIAS:
            sums += tl.load(bias + read).to(tl.float32)[None, :]
        place = out + row.to(tl.int64)[:, None] * outputs + output[None, :]
        tl.store(place, sums.to(out.dtype.element_ty), mask=exists[:, None] & (output < outputs)[None, :])


def multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, order: Order, gathers: bool
) -> torch.Tensor:
    """x: [rows, inputs], or [tokens, inputs] if `gathers`; weight: [experts, outputs, inputs]; bias:
    [experts, outputs]. All are contiguous. Returns [rows, outputs]; rows without an expert are undefined."""
    experts, outputs, inputs = weight.shape
    rows, size = len(order.tokens), x.element_size()
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    block_rows = choose_block_rows(rows, experts)
    blocks = min(rows, experts + rows // block_rows)
    grouped_product_kernel[(blocks, triton.cdiv(outputs, OUTPUTS[size]))](
        x,
        order.tokens,
        order.starts,
        weight,
        weight if bias is None else bias,
        out,
        rows,
        blocks,
        experts,
        outputs,
        inputs,
        GATHERS=gathers,
        BIAS=bias is not None,
        WHOLE=inputs % INPUTS[size] == 0,
        EXPERTS=triton.next_power_of_2(experts),
        BLOCK_ROWS=block_rows,
        BLOCK_OUTPUTS=OUTPUTS[size],
        BLOCK_INPUTS=INPUTS[size],
        STAGES=STAGES,
    )
    return out


def choose_block_rows(rows: int, experts: int) -> int:
    """Rows of a program: about as many as an expert has on average."""
    return int(min(MAX_ROWS, max(MIN_ROWS, triton.next_power_of_2(-(-rows // experts)))))
