"""Normalisation and activation on CPUs, in one pass over memory each."""

import numpy as np
import torch

from ..common.jit import compiled_fast
from ..common.lanes import (
    add_lanes,
    fill_lanes,
    load_wide,
    multiply_add,
    multiply_lanes,
    round_lanes,
    scale_lanes,
    silu,
    store_narrow,
    sum_lanes,
    sum_squares,
)
from ..common.numba_tools import (
    KIND,
    exp,
    fetch_add,
    load,
    pack_float,
    pointer,
    round_to,
    shift,
    store,
    unpack_float,
)
from ..common.threads import PIECE, ParallelKernel, thread_count
from ..common.vectors import LANES


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    _run(x, x, weight, eps, out, add=False)
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(residual)
    _run(x, residual, weight, eps, out, add=True)
    return out


def _run(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, add: bool
) -> None:
    assert x.dtype == weight.dtype
    assert x.is_contiguous() and residual.is_contiguous() and weight.is_contiguous()
    rows, size = x.shape
    arguments = (
        rows,
        size,
        x.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        int(add),
        pack_float(eps),
    )
    NORMS[x.dtype].run(arguments, thread_count(x.numel()))


@compiled_fast
def _norm(arguments, kind):
    """Arguments: the counter of rows, then those of `_run`."""
    rows, size, add = arguments[1], arguments[2], arguments[7]
    weight = pointer(arguments[5], kind)
    eps = unpack_float(arguments[8])
    step = max(1, PIECE // size)
    while True:
        begin = fetch_add(arguments, step)
        if begin >= rows:
            break
        for row in range(begin, min(rows, begin + step)):
            x = shift(pointer(arguments[3], kind), row * size)
            out = shift(pointer(arguments[6], kind), row * size)
            if add:
                residual = shift(pointer(arguments[4], kind), row * size)
                squares = _add(residual, x, size, kind)
                x = residual
            else:
                squares = sum_squares(x, size)
            scale = np.float32(1) / np.sqrt(squares / np.float32(size) + eps)
            _scale(x, scale, weight, size, kind, out)


@compiled_fast
def _add(residual, x, size, kind):
    """Adds x to the residual. Returns the sum of the squares of the results."""
    partial_sums = fill_lanes(np.float32(0))
    vectors_end = size - size % LANES
    for i in range(0, vectors_end, LANES):
        value = round_lanes(add_lanes(load_wide(residual, i), load_wide(x, i)), kind)
        partial_sums = multiply_add(value, value, partial_sums)
        store_narrow(residual, i, value)
    squares = sum_lanes(partial_sums)
    for i in range(vectors_end, size):
        value = round_to(load(residual, i) + load(x, i), kind)
        squares += value * value
        store(residual, i, value)
    return squares


@compiled_fast
def _scale(x, scale, weight, size, kind, out):
    """out = x times `scale`, rounded, times `weight`"""
    vectors_end = size - size % LANES
    for i in range(0, vectors_end, LANES):
        value = round_lanes(scale_lanes(load_wide(x, i), scale), kind)
        store_narrow(out, i, multiply_lanes(value, load_wide(weight, i)))
    for i in range(vectors_end, size):
        store(out, i, round_to(load(x, i) * scale, kind) * load(weight, i))


NORMS = {dtype: ParallelKernel(_norm, kind) for dtype, kind in KIND.items()}


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    assert gate_up.stride(1) == 1
    tokens, width = gate_up.shape
    out = torch.empty(tokens, width // 2, dtype=gate_up.dtype)
    arguments = (tokens, width // 2, gate_up.data_ptr(), gate_up.stride(0), out.data_ptr())
    ACTIVATIONS[gate_up.dtype].run(arguments, thread_count(gate_up.numel()))
    return out


@compiled_fast
def _silu_and_mul(arguments, kind):
    """Arguments: the counter of pieces of tokens, then those of `silu_and_mul`."""
    tokens, width = arguments[1], arguments[2]
    pieces = (width + PIECE - 1) // PIECE
    while True:
        work = fetch_add(arguments, 1)
        if work >= tokens * pieces:
            break
        token = work // pieces
        gate = shift(pointer(arguments[3], kind), token * arguments[4])
        out = shift(pointer(arguments[5], kind), token * width)
        begin = work % pieces * PIECE
        end = min(width, begin + PIECE)
        vectors_end = end - (end - begin) % LANES
        for i in range(begin, vectors_end, LANES):
            gated = round_lanes(silu(load_wide(gate, i)), kind)
            store_narrow(out, i, multiply_lanes(gated, load_wide(gate, width + i)))
        for i in range(vectors_end, end):
            x = load(gate, i)
            tail = exp(-abs(x))
            sigmoid = (np.float32(1) if x >= np.float32(0) else tail) / (np.float32(1) + tail)
            store(out, i, round_to(x * sigmoid, kind) * load(gate, width + i))


ACTIVATIONS = {dtype: ParallelKernel(_silu_and_mul, kind) for dtype, kind in KIND.items()}
