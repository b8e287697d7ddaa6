"""Head norms, rotary embedding and cache writes on CUDA: one program for each token and head of q or k."""

import torch
import triton
import triton.language as tl

from ..common.codes_cuda import encode, magnitude, scale_and_factor
from ..common.dependent_launch_cuda import launch_early, wait_for_previous
from ..elementwise import HeadNorms
from ..pages.cells import FP8, CellFormat, codes_and_scales


@triton.jit
def rotary_write_kv_kernel(
    q, k, v, cos_sin, positions, places, kv, scales, q_norm, k_norm,
    q_stride, k_stride, v_stride, place_count, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, CELL: tl.constexpr,
    HALF: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_DIM: tl.constexpr, NORMAL: tl.constexpr,
    SCALED: tl.constexpr, FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """kv: int8 if SCALED; then `scales` is the same memory as float32."""
    wait_for_previous(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, BLOCK_HALF)
    dim = tl.arange(0, BLOCK_DIM)
    turns = i < HALF
    passes = (dim >= 2 * HALF) & (dim < HEAD_DIM)
    place = tl.load(places + token)
    if place < 0:
        return
    kv_head = (head - HEADS).to(tl.int64)
    if head < HEADS:
        source = q + token * q_stride + head * HEAD_DIM
        weight = q_norm
    else:
        source = k + token * k_stride + kv_head * HEAD_DIM
        weight = k_norm
    left = tl.load(source + i, mask=turns, other=0.0).to(tl.float32)
    right = tl.load(source + HALF + i, mask=turns, other=0.0).to(tl.float32)
    rest = tl.load(source + dim, mask=passes, other=0.0).to(tl.float32)
    if NORMAL:
        squares = tl.sum(left * left) + tl.sum(right * right) + tl.sum(rest * rest)
        scale = 1.0 / tl.sqrt(squares / HEAD_DIM + eps)
        left *= scale * tl.load(weight + i, mask=turns, other=0.0).to(tl.float32)
        right *= scale * tl.load(weight + HALF + i, mask=turns, other=0.0).to(tl.float32)
        rest *= scale * tl.load(weight + dim, mask=passes, other=0.0).to(tl.float32)
    angles = cos_sin + tl.load(positions + token) * (2 * HALF)
    cos = tl.load(angles + i, mask=turns, other=0.0)
    sin = tl.load(angles + HALF + i, mask=turns, other=0.0)
    first = left * cos - right * sin
    second = right * cos + left * sin
    if head < HEADS:
        stored = q.dtype.element_ty
        tl.store(source + i, first.to(stored), mask=turns)
        tl.store(source + HALF + i, second.to(stored), mask=turns)
        if 2 * HALF < HEAD_DIM:
            tl.store(source + dim, rest.to(stored), mask=passes)
        return
    value = tl.load(v + token * v_stride + kv_head * HEAD_DIM + dim, mask=dim < HEAD_DIM, other=0.0)
    key_cell = kv_head * place_count + place
    value_cell = key_cell + KV_HEADS * place_count.to(tl.int64)
    target = kv + key_cell * CELL
    if SCALED:
        largest = tl.maximum(tl.maximum(magnitude(first, 0), magnitude(second, 0)), magnitude(rest, 0))
        key_scale, key_factor = scale_and_factor(largest, FP8)
        value = value.to(tl.float32)
        value_scale, value_factor = scale_and_factor(magnitude(value, 0), FP8)
        tl.store(scales + (key_cell + 1) * (CELL // 4) - 1, key_scale)
        tl.store(scales + (value_cell + 1) * (CELL // 4) - 1, value_scale)
        tl.store(target + i, encode(first, key_factor, FP8), mask=turns)
        tl.store(target + HALF + i, encode(second, key_factor, FP8), mask=turns)
        if 2 * HALF < HEAD_DIM:
            tl.store(target + dim, encode(rest, key_factor, FP8), mask=passes)
        tl.store(kv + value_cell * CELL + dim, encode(value, value_factor, FP8), mask=dim < HEAD_DIM)
    else:
        stored = kv.dtype.element_ty
        tl.store(target + i, first.to(stored), mask=turns)
        tl.store(target + HALF + i, second.to(stored), mask=turns)
        if 2 * HALF < HEAD_DIM:
            tl.store(target + dim, rest.to(stored), mask=passes)
        tl.store(kv + value_cell * CELL + dim, value, mask=dim < HEAD_DIM)


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
    kv_heads, half = k.shape[1], cos_sin.shape[1] // 2
    assert q.stride(1) == k.stride(1) == v.stride(1) == head_dim and kv.is_contiguous()
    assert cos_sin.is_contiguous() and positions.is_contiguous() and places.is_contiguous()
    cells = CellFormat(kv.dtype)
    assert kv.dtype == q.dtype or cells.is_scaled
    assert kv.shape[4] == cells.elements(head_dim)
    codes, scales = codes_and_scales(kv)
    rotary_write_kv_kernel[(tokens, heads + kv_heads)](
        q,
        k,
        v,
        cos_sin,
        positions,
        places,
        codes,
        scales,
        q if norms is None else norms.q,
        q if norms is None else norms.k,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        kv.shape[2] * kv.shape[3],
        0.0 if norms is None else norms.eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        CELL=kv.shape[4],
        HALF=half,
        BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        NORMAL=norms is not None,
        SCALED=cells.is_scaled,
        FP8=kv.dtype == FP8,
        num_warps=1,
        **launch_early(q.device),
    )
