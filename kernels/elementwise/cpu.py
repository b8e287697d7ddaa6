"""Normalisation and activation on CPUs, in one pass over memory each."""

import numpy as np
import torch

from ..common.jit import compiled_fast
from ..common.lanes import (
    GELU_CUBIC,
    GELU_SCALE,
    add_lanes,
    fill_lanes,
    gelu,
    load_lanes,
    load_wide,
    multiply_add,
    multiply_lanes,
    round_lanes,
    scale_lanes,
    silu,
    store_lanes,
    store_narrow,
    sum_lanes,
    sum_squares,
    tanh,
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
from ..common.threads import MIN_PIECE, PIECE, ParallelKernel, thread_count
from ..common.vectors import LANES


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    _run(x, None, weight, eps, 1.0, None, out)
    return out


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    multiplier: float = 1.0,
    own_weight: torch.Tensor | None = None,
) -> torch.Tensor:
    out = torch.empty_like(residual)
    _run(x, residual, weight, eps, multiplier, own_weight, out)
    return out


def _run(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    multiplier: float,
    own_weight: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    assert x.is_contiguous() and out.is_contiguous() and weight.is_contiguous()
    assert own_weight is None or own_weight.dtype == weight.dtype
    assert residual is None or residual.is_contiguous()
    rows, size = x.shape
    arguments = (
        rows,
        size,
        x.data_ptr(),
        0 if residual is None else residual.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        0 if own_weight is None else own_weight.data_ptr(),
        pack_float(multiplier),
        pack_float(eps),
    )
    NORMS[x.dtype, weight.dtype].run(arguments, thread_count(x.numel()))


@compiled_fast
def _norm(arguments, kind, stored, rounds):
    """Arguments: the counter of rows, then those of `_run`. stored: type of weights; rounds: see `_scale`"""
    rows, size = arguments[1], arguments[2]
    adds, is_normalised = arguments[4] != 0, arguments[7] != 0
    weight, own_weight = pointer(arguments[5], stored), pointer(arguments[7], stored)
    multiplier, eps = unpack_float(arguments[8]), unpack_float(arguments[9])
    step = max(1, PIECE // size)
    while True:
        begin = fetch_add(arguments, step)
        if begin >= rows:
            break
        for row in range(begin, min(rows, begin + step)):
            x = shift(pointer(arguments[3], kind), row * size)
            out = shift(pointer(arguments[6], kind), row * size)
            if adds:
                residual = shift(pointer(arguments[4], kind), row * size)
                if is_normalised:
                    _scale(
                        x, _inverse_root(sum_squares(x, size), size, eps), own_weight, size, kind, rounds, x
                    )
                squares = _add(residual, x, multiplier, size, kind)
                x = residual
            else:
                squares = sum_squares(x, size)
            _scale(x, _inverse_root(squares, size, eps), weight, size, kind, rounds, out)


@compiled_fast
def _inverse_root(squares, size, eps):
    return np.float32(1) / np.sqrt(squares / np.float32(size) + eps)


@compiled_fast
def _add(residual, x, multiplier, size, kind):
    """Adds x times `multiplier` to the residual. Returns the sum of the squares of the results."""
    partial_sums = fill_lanes(np.float32(0))
    vectors_end = size - size % LANES
    for i in range(0, vectors_end, LANES):
        added = load_wide(x, i)
        if multiplier != np.float32(1):
            added = round_lanes(scale_lanes(added, multiplier), kind)
        value = round_lanes(add_lanes(load_wide(residual, i), added), kind)
        partial_sums = multiply_add(value, value, partial_sums)
        store_narrow(residual, i, value)
    squares = sum_lanes(partial_sums)
    for i in range(vectors_end, size):
        value = round_to(load(residual, i) + round_to(load(x, i) * multiplier, kind), kind)
        squares += value * value
        store(residual, i, value)
    return squares


@compiled_fast
def _scale(x, scale, weight, size, kind, rounds, out):
    """out = x times `scale`, rounded if `rounds`, times `weight`. x and out may be the same memory."""
    vectors_end = size - size % LANES
    for i in range(0, vectors_end, LANES):
        value = scale_lanes(load_wide(x, i), scale)
        if rounds:
            value = round_lanes(value, kind)
        store_narrow(out, i, multiply_lanes(value, load_wide(weight, i)))
    for i in range(vectors_end, size):
        value = load(x, i) * scale
        if rounds:
            value = round_to(value, kind)
        store(out, i, value * load(weight, i))


NORMS = {
    (dtype, stored): ParallelKernel(_norm, kind, KIND[stored], np.int64(dtype == stored))
    for dtype, kind in KIND.items()
    for stored in (dtype, torch.float32)
}
"""by dtype of the activations and of the weights"""


def activate_and_mul(gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
    assert gate_up.stride(1) == 1
    tokens, width = gate_up.shape
    out = torch.empty(tokens, width // 2, dtype=gate_up.dtype)
    addresses = (gate_up.data_ptr(), gate_up.stride(0), out.data_ptr())
    arguments = (tokens, width // 2, *addresses, thread_count())
    ACTIVATIONS[gate_up.dtype, gelu].run(arguments, thread_count(gate_up.numel()))
    return out


@compiled_fast
def split_row(width, tokens, threads):
    """Chooses how many elements of a row a thread takes at a time: PIECE, or fewer if there are few rows.

    They are a multiple of LANES, so the number of threads does not decide which elements vectors compute.
    """
    pieces = max((width + PIECE - 1) // PIECE, min((threads + tokens - 1) // tokens, width // MIN_PIECE))
    return ((width + pieces - 1) // pieces + LANES - 1) // LANES * LANES


@compiled_fast
def _activate_and_mul(arguments, kind, is_gelu):
    """Arguments: the counter of pieces of tokens, then those of `activate_and_mul`."""
    tokens, width = arguments[1], arguments[2]
    step = split_row(width, tokens, arguments[6])
    pieces = (width + step - 1) // step
    while True:
        work = fetch_add(arguments, 1)
        if work >= tokens * pieces:
            break
        token = work // pieces
        gate = shift(pointer(arguments[3], kind), token * arguments[4])
        out = shift(pointer(arguments[5], kind), token * width)
        begin = work % pieces * step
        end = min(width, begin + step)
        vectors_end = end - (end - begin) % LANES
        for i in range(begin, vectors_end, LANES):
            x = load_wide(gate, i)
            gated = round_lanes(gelu(x) if is_gelu else silu(x), kind)
            store_narrow(out, i, multiply_lanes(gated, load_wide(gate, width + i)))
        for i in range(vectors_end, end):
            x = load(gate, i)
            inner = x
            if is_gelu:
                inner = x * np.float32(2 * GELU_SCALE) * (np.float32(1) + np.float32(GELU_CUBIC) * x * x)
            tail = exp(-abs(inner))
            sigmoid = (np.float32(1) if inner >= np.float32(0) else tail) / (np.float32(1) + tail)
            store(out, i, round_to(x * sigmoid, kind) * load(gate, width + i))


ACTIVATIONS = {
    (dtype, is_gelu): ParallelKernel(_activate_and_mul, kind, np.int64(is_gelu))
    for dtype, kind in KIND.items()
    for is_gelu in (False, True)
}
"""by dtype, and whether the activation is GELU rather than SiLU"""


def scale_and_cap(x: torch.Tensor, factor: float, softcap: float | None, dtype: torch.dtype) -> torch.Tensor:
    assert x.is_contiguous()
    out = torch.empty_like(x, dtype=dtype)
    arguments = (
        x.numel(),
        x.data_ptr(),
        pack_float(factor / softcap if softcap else factor),
        pack_float(softcap or 0.0),
        out.data_ptr(),
    )
    SCALES[x.dtype, dtype].run(arguments, thread_count(x.numel()))
    return out


@compiled_fast
def _scale_and_cap(arguments, kind, stored):
    """Arguments: the counter of pieces, then those of `scale_and_cap`. A factor was divided by the cap."""
    elements = arguments[1]
    factor, cap = unpack_float(arguments[3]), unpack_float(arguments[4])
    x, out = pointer(arguments[2], kind), pointer(arguments[5], stored)
    buffer = np.empty(LANES, np.float32)
    last = pointer(buffer.ctypes.data, np.float32(0))
    while True:
        begin = fetch_add(arguments, PIECE)
        if begin >= elements:
            break
        end = min(elements, begin + PIECE)
        vectors_end = end - (end - begin) % LANES
        for i in range(begin, vectors_end, LANES):
            store_narrow(out, i, _cap(scale_lanes(load_wide(x, i), factor), cap))
        for i in range(vectors_end, end):
            last[i - vectors_end] = load(x, i) * factor
        if vectors_end < end:
            store_lanes(last, 0, _cap(load_lanes(last, 0), cap))
        for i in range(vectors_end, end):
            store(out, i, buffer[i - vectors_end])


@compiled_fast
def _cap(value, cap):
    return value if cap == np.float32(0) else scale_lanes(tanh(value), cap)


SCALES = {
    (dtype, stored): ParallelKernel(_scale_and_cap, kind, KIND[stored])
    for dtype, kind in KIND.items()
    for stored in (dtype, torch.float32)
}
"""by dtype of the input and of the result"""
