"""Head norms, rotary embedding and cache writes on CPUs, in one pass over memory."""

import numpy as np
import torch

from ..common.jit import compiled_fast
from ..common.lanes import (
    load_lanes,
    load_wide,
    multiply_add,
    multiply_lanes,
    scale_lanes,
    store_narrow,
    subtract_lanes,
    sum_squares,
)
from ..common.numba_tools import (
    CELL_KIND,
    KIND,
    fetch_add,
    load,
    pack_float,
    pointer,
    shift,
    store,
    unpack_float,
)
from ..common.threads import ParallelKernel, thread_count
from ..common.vectors import LANES
from ..elementwise import HeadNorms
from ..pages.cells import CellFormat
from ..pages.cells_cpu import copy_to_cell, is_scaled, write_cell
from ..pages.segments import Segments


def rotary_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    places: torch.Tensor,
    kv: torch.Tensor,
    norms: HeadNorms | None = None,
) -> None:
    tokens, heads, head_dim = q.shape
    assert q.stride(1) == k.stride(1) == v.stride(1) == head_dim
    assert kv.dtype in (q.dtype, torch.int8) and kv.shape[4] == CellFormat(kv.dtype).elements(head_dim)
    assert norms is None or norms.q.dtype == norms.k.dtype == torch.float32
    assert cos_sin.is_contiguous() and positions.is_contiguous() and places.is_contiguous()
    segments = Segments.of(kv)
    arguments = (
        tokens,
        heads,
        k.shape[1],
        head_dim,
        cos_sin.shape[1] // 2,
        segments.head,
        q.data_ptr(),
        q.stride(0),
        k.data_ptr(),
        k.stride(0),
        v.data_ptr(),
        v.stride(0),
        cos_sin.data_ptr(),
        positions.data_ptr(),
        places.data_ptr(),
        kv.data_ptr(),
        0 if norms is None else norms.q.data_ptr(),
        0 if norms is None else norms.k.data_ptr(),
        0 if norms is None else pack_float(norms.eps),
        kv.shape[4],
        segments.tokens,
        segments.segment,
        segments.value,
        thread_count(),
    )
    KERNELS[q.dtype, kv.dtype].run(arguments, thread_count(q.numel() + 2 * k.numel()))


@compiled_fast
def _inverse_norm(head, eps, head_dim):
    """1 / sqrt(mean square of the head's elements + eps)"""
    return np.float32(1) / np.sqrt(sum_squares(head, head_dim) / np.float32(head_dim) + eps)


@compiled_fast
def _rotate(source, normal, scale, weight, cos_sin, half, head_dim, target):
    """target = the head at `source`, times `scale` and `weight` if `normal`, then rotated.

    Source and target may be the same memory.
    """
    vectors_end = half - half % LANES
    for i in range(0, vectors_end, LANES):
        low, high = load_wide(source, i), load_wide(source, half + i)
        if normal:
            low = multiply_lanes(low, scale_lanes(load_lanes(weight, i), scale))
            high = multiply_lanes(high, scale_lanes(load_lanes(weight, half + i), scale))
        cos, sin = load_lanes(cos_sin, i), load_lanes(cos_sin, half + i)
        store_narrow(target, i, subtract_lanes(multiply_lanes(low, cos), multiply_lanes(high, sin)))
        store_narrow(target, half + i, multiply_add(low, sin, multiply_lanes(high, cos)))
    for i in range(vectors_end, half):
        below, above = load(source, i), load(source, half + i)
        if normal:
            below *= scale * weight[i]
            above *= scale * weight[half + i]
        cosine, sine = cos_sin[i], cos_sin[half + i]
        store(target, i, below * cosine - above * sine)
        store(target, half + i, above * cosine + below * sine)
    rest_end = 2 * half + (head_dim - 2 * half) // LANES * LANES
    for i in range(2 * half, rest_end, LANES):
        value = load_wide(source, i)
        if normal:
            value = multiply_lanes(value, scale_lanes(load_lanes(weight, i), scale))
        store_narrow(target, i, value)
    for i in range(rest_end, head_dim):
        number = load(source, i)
        if normal:
            number *= scale * weight[i]
        store(target, i, number)


@compiled_fast
def _rotate_token(arguments, token, part, parts, kind, stored, buffer):
    """Does one of `parts` parts of the token's heads. buffer: float32 [head_dim]; the caller must keep it
    alive."""
    heads, kv_heads = arguments[2], arguments[3]
    head_dim, half, head_cells = arguments[4], arguments[5], arguments[6]
    normal, eps, cell = arguments[17] != 0, unpack_float(arguments[19]), arguments[20]
    segment_tokens, segment_cells, value_cells = arguments[21], arguments[22], arguments[23]
    q_weight = pointer(arguments[17], np.float32(0))
    k_weight = pointer(arguments[18], np.float32(0))
    floats = pointer(buffer.ctypes.data, np.float32(0))
    position = pointer(arguments[14], np.int64(0))[token]
    place = pointer(arguments[15], np.int64(0))[token]
    if place < 0:
        return
    cos_sin = shift(pointer(arguments[13], np.float32(0)), position * 2 * half)
    q = shift(pointer(arguments[7], kind), token * arguments[8])
    for head in range(heads * part // parts, heads * (part + 1) // parts):
        query = shift(q, head * head_dim)
        scale = _inverse_norm(query, eps, head_dim) if normal else np.float32(1)
        _rotate(query, normal, scale, q_weight, cos_sin, half, head_dim, query)
    k = shift(pointer(arguments[9], kind), token * arguments[10])
    v = shift(pointer(arguments[11], kind), token * arguments[12])
    first = place // segment_tokens * segment_cells + place % segment_tokens
    for head in range(kv_heads * part // parts, kv_heads * (part + 1) // parts):
        cell_start = (first + head * head_cells) * cell
        keys = shift(pointer(arguments[16], stored), cell_start)
        key = shift(k, head * head_dim)
        scale = _inverse_norm(key, eps, head_dim) if normal else np.float32(1)
        if is_scaled(keys):
            _rotate(key, normal, scale, k_weight, cos_sin, half, head_dim, floats)
            write_cell(keys, head_dim, floats)
        else:
            _rotate(
                key,
                normal,
                scale,
                k_weight,
                cos_sin,
                half,
                head_dim,
                shift(pointer(arguments[16], kind), cell_start),
            )
        copy_to_cell(shift(keys, value_cells * cell), head_dim, shift(v, head * head_dim), floats)


@compiled_fast
def _rotate_and_write(arguments, kind, stored):
    """Arguments: the counter of tokens, or of parts of their heads if there are more threads than tokens, and
    those of `rotary_write_kv`."""
    buffer, tokens = np.empty(arguments[4], np.float32), arguments[1]
    parts = max(1, min(arguments[3], arguments[24] // tokens))
    while True:
        work = fetch_add(arguments, 1)
        if work >= tokens * parts:
            break
        _rotate_token(arguments, work // parts, work % parts, parts, kind, stored, buffer)


KERNELS = {
    (dtype, stored): ParallelKernel(_rotate_and_write, kind, CELL_KIND[stored])
    for dtype, kind in KIND.items()
    for stored in (dtype, torch.int8)
}
"""by dtype of the activations and of the cache"""
