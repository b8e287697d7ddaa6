# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Rotary embedding and cache writes on CUDA: one program for each token and head of q or k."""

import torch
import triton
import triton.language as tl


@triton.jit
def rotary_write_kv_kernel(
    q, k, v, cos_sin, positions, slots, kv, q_stride, k_stride, v_stride, slot_count,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr, BLOCK_DIM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, BLOCK_HALF)
    dim = tl.arange(0, BLOCK_DIM)
    turns = i < HALF
    passes = (dim >= 2 * HALF) & (dim < HEAD_DIM)
    angles = cos_sin + tl.load(positions + token) * (2 * HALF)
    cos = tl.load(angles + i, mask=turns, other=0.0)
    sin = tl.load(angles + HALF + i, mask=turns, other=0.0)
    if head < HEADS:
        query = q + token * q_stride + head * HEAD_DIM
        left = tl.load(query + i, mask=turns, other=0.0).to(tl.float32)
        right = tl.load(query + HALF + i, mask=turns, other=0.0).to(tl.float32)
        tl.store(query + i, (left * cos - right * sin).to(q.dtype.element_ty), mask=turns)
        tl.store(query + HALF + i, (right * cos + left * sin).to(q.dtype.element_ty), mask=turns)
    else:
        head = head - HEADS
        key = k + token * k_stride + head * HEAD_DIM
        slot = tl.load(slots + token)
        target = kv + (head.to(tl.int64) * slot_count + slot) * HEAD_DIM
        left = tl.load(key + i, mask=turns, other=0.0).to(tl.float32)
        right = tl.load(key + HALF + i, mask=turns, other=0.0).to(tl.float32)
        tl.store(target + i, (left * cos - right * sin).to(kv.dtype.element_ty), mask=turns)
        tl.store(target + HALF + i, (right * cos + left * sin).to(kv.dtype.element_ty), mask=turns)
        if 2 * HALF < HEAD_DIM:
            tl.store(target + dim, tl.load(key + dim, mask=passes, other=0.0), mask=passes)
        value = tl.load(v + token * v_stride + head * HEAD_DIM + dim, mask=dim < HEAD_DIM, other=0.0)
        values_at = target + KV_HEADS * slot_count.to(tl.int64) * HEAD_DIM
        tl.store(values_at + dim, value, mask=dim < HEAD_DIM)


def rotary_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    kv: torch.Tensor,
) -> None:
    """See `rotary.rotary_write_kv`."""
    tokens, heads, head_dim = q.shape
    kv_heads, half = k.shape[1], cos_sin.shape[1] // 2
    assert q.stride(1) == k.stride(1) == v.stride(1) == head_dim and kv.is_contiguous()
    assert cos_sin.is_contiguous() and positions.is_contiguous() and slots.is_contiguous()
    rotary_write_kv_kernel[(tokens, heads + kv_heads)](
        q,
        k,
        v,
        cos_sin,
        positions,
        slots,
        kv,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        kv.shape[2] * kv.shape[3],
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        HALF=half,
        BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        num_warps=1,
    )
